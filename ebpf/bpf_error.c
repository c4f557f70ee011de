// SPDX-License-Identifier: Apache-2.0
#include "ebpf/bpf_error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/privileges.h"

static struct stall_bpf_log *current;

// The verifier's log comes as one long text: the refused instruction comes before its count of
// instructions ("processed N insns").
static void keep_verifier_line(struct stall_bpf_log *log, char *text)
{
	char *end = strstr(text, "\nprocessed ");

	if (!end)
		return;
	*end = 0;
	char *line = strrchr(text, '\n');
	snprintf(log->text, sizeof(log->text), "%.500s", line ? line + 1 : text);
}

static int keep(enum libbpf_print_level level, const char *format, va_list args)
{
	_cleanup_free_ char *text =
		NULL; // a verifier's log may have megabytes, and ends in the reason

	if (level != LIBBPF_WARN || !current || vasprintf(&text, format, args) < 0)
		return 0;
	if (strstr(text, "BEGIN PROG LOAD LOG"))
		keep_verifier_line(current, text);
	else if (!current->text[0])
		snprintf(current->text, sizeof(current->text), "%.*s", (int)strcspn(text, "\n"),
			 text);
	return 0;
}

void stall_bpf_log_begin(struct stall_bpf_log *log)
{
	log->text[0] = 0;
	log->outer = current;
	current = log;
	log->previous = libbpf_set_print(keep);
}

void stall_bpf_log_end(struct stall_bpf_log *log)
{
	libbpf_set_print(log->previous);
	current = log->outer;
}

struct stall_error *stall_bpf_load_error(int errnum, const char *programs, const char *log)
{
	static const enum stall_capability wanted[] = {STALL_CAP_BPF, STALL_CAP_PERFMON,
						       STALL_CAP_SYS_PTRACE};
	char missing[128];

	struct utsname kernel = {};

	if (!log[0]) // libbpf prints some messages only once
		log = strerror(errnum);
	stall_missing_capabilities(wanted, sizeof(wanted) / sizeof(wanted[0]), missing,
				   sizeof(missing));
	if (errnum == EPERM && missing[0])
		return stall_error_create(STALL_ERROR_PERMISSION,
					  "cannot load BPF programs and read stacks without %s; %s",
					  missing, STALL_CAPABILITIES_ADVICE);
	struct stall_error *err = stall_lockdown_check();
	if (err)
		return err;
	if (access(STALL_BTF_PATH, R_OK) < 0)
		return stall_bpf_no_types(errno);
	if (errnum == EPERM)
		return stall_error_create(
			STALL_ERROR_PERMISSION,
			"the kernel refuses BPF programs: a user namespace or seccomp is in the "
			"way; run it outside the container");
	uname(&kernel);
	if (errnum == EACCES || errnum == EINVAL || errnum == ESRCH)
		return stall_error_create(
			STALL_ERROR_UNSUPPORTED,
			"Linux %.64s does not load %s (%s); docs/support-matrix.md "
			"lists the kernels that were tried",
			kernel.release, programs, log);
	return stall_error_os(errnum, "cannot load %s (%s)", programs, log);
}

struct stall_error *stall_bpf_no_types(int errnum)
{
	return stall_error_create(errnum == EACCES ? STALL_ERROR_PERMISSION
						   : STALL_ERROR_UNSUPPORTED,
				  "cannot read the kernel's types, " STALL_BTF_PATH
				  " (%s); take a kernel built with CONFIG_DEBUG_INFO_BTF",
				  errnum == ESRCH ? "there are none" : strerror(errnum));
}

struct stall_error *stall_bpf_pid_namespace(unsigned int *ret)
{
	struct stat pidns;

	if (stat("/proc/self/ns/pid", &pidns) < 0)
		return stall_error_os(errno, "cannot read /proc/self/ns/pid: is /proc mounted?");
	*ret = pidns.st_ino;
	return NULL;
}
