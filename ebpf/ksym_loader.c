// SPDX-License-Identifier: Apache-2.0
#include "ebpf/ksym_loader.h"

#ifdef STALL_HAVE_BPF

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>

#include "ebpf/bpf_error.h"
#include "ksym.skel.h"

// The skeleton itself: it is allocated by libbpf.
struct stall_ksym_loader {
	struct ksym ksym;
};

struct stall_error *stall_ksym_loader_create(struct stall_ksym_loader **ret)
{
	struct stall_bpf_log log;
	int failed = 0;

	stall_bpf_log_begin(&log);
	struct ksym *ksym = ksym__open();
	if (ksym)
		failed = ksym__load(ksym);
	else
		failed = -errno;
	stall_bpf_log_end(&log);
	if (failed) {
		ksym__destroy(ksym);
		return stall_error_os(-failed, "BPF program name_address: cannot load");
	}
	*ret = (struct stall_ksym_loader *)ksym;
	return NULL;
}

void stall_ksym_loader_destroy(struct stall_ksym_loader *names)
{
	ksym__destroy((struct ksym *)names);
}

struct stall_error *stall_ksym_loader_find(struct stall_ksym_loader *names, uint64_t address,
					   const char **ret)
{
	struct ksym *ksym = &names->ksym;
	LIBBPF_OPTS(bpf_test_run_opts, options);

	ksym->bss->address = address;
	int failed = bpf_prog_test_run_opts(bpf_program__fd(ksym->progs.name_address), &options);
	if (failed)
		return stall_error_os(-failed, "BPF program name_address: cannot run");
	if ((int)options.retval < 0)
		return stall_error_os(-(int)options.retval, "bpf_snprintf");
	ksym->bss->name[sizeof(ksym->bss->name) - 1] = '\0';
	*ret = ksym->bss->name;
	return NULL;
}

#else

struct stall_error *stall_ksym_loader_create(struct stall_ksym_loader **ret)
{
	(void)ret;
	return stall_error_create(STALL_ERROR_UNSUPPORTED, "built without BPF");
}

void stall_ksym_loader_destroy(struct stall_ksym_loader *names)
{
	(void)names;
}

struct stall_error *stall_ksym_loader_find(struct stall_ksym_loader *names, uint64_t address,
					   const char **ret)
{
	(void)names;
	(void)address;
	(void)ret;
	return stall_error_create(STALL_ERROR_UNSUPPORTED, "built without BPF");
}

#endif
