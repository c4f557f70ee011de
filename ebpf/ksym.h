/* SPDX-License-Identifier: (GPL-2.0 OR BSD-2-Clause) */
/* Shared by ksym.bpf.c and its loader. */
#ifndef STALL_KSYM_H
#define STALL_KSYM_H

/* The kernel's KSYM_SYMBOL_LEN, 512 and some since 6.1. */
#define STALL_KSYM_NAME 640

#endif
