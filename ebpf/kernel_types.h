// SPDX-License-Identifier: Apache-2.0
// Queries of the kernel's own types (BTF).
#ifndef STALL_KERNEL_TYPES_H
#define STALL_KERNEL_TYPES_H

struct btf;
struct btf_member;

// NULL where the kernel has no such struct, or the struct no such member.
const struct btf_member *stall_kernel_member(const struct btf *btf, const char *name,
					     const char *member);

#endif
