// SPDX-License-Identifier: (GPL-2.0 OR BSD-2-Clause)
// Names one kernel address: the kernel's own table answers in a microsecond, where reading
// /proc/kallsyms costs 50 ms. Run by BPF_PROG_TEST_RUN, attached to nothing.
#include "ebpf/programs/vmlinux.h"

#include <bpf/bpf_helpers.h>

#include "ebpf/ksym.h"

__u64 address;
char name[STALL_KSYM_NAME];

SEC("syscall")
int name_address(void *ctx)
{
	(void)ctx;
	// "function+0x12/0x34 [module]", or the bare number where there is no name. bpf_snprintf
	// takes %ps and %pS as printk does (Documentation/core-api/printk-formats.rst).
	static const char format[] = "%pS";

	return bpf_snprintf(name, sizeof(name), format, &address, sizeof(address));
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
