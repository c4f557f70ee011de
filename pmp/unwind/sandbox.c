// SPDX-License-Identifier: Apache-2.0
#include "unwind/sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define NOBODY 65534

#if defined(__SANITIZE_ADDRESS__)
#define HAVE_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HAVE_ASAN 1
#endif
#endif

// Works only with CAP_SETPCAP; no_new_privs forbids the same.
static void drop_bounding_set(void)
{
	for (unsigned long cap = 0; prctl(PR_CAPBSET_READ, cap, 0, 0, 0) >= 0; cap++)
		prctl(PR_CAPBSET_DROP, cap, 0, 0, 0);
}

static void drop_capabilities(void)
{
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct none[2] = {};

	prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
	syscall(SYS_capset, &header, none);
}

// In a user namespace that does not map nobody this fails: capabilities and system calls are
// removed anyway.
static void become_nobody(void)
{
	if (geteuid() != 0)
		return;
	if (setgroups(0, NULL) == 0 && setresgid(NOBODY, NOBODY, NOBODY) == 0)
		(void)!setresuid(NOBODY, NOBODY, NOBODY);
}

static void set_limits(size_t memory)
{
	struct rlimit none = {0, 0};

	setrlimit(RLIMIT_CORE, &none);
	setrlimit(RLIMIT_NPROC, &none);
#ifndef HAVE_ASAN // which reserves terabytes
	struct rlimit limit = {memory, memory};

	if (memory)
		setrlimit(RLIMIT_AS, &limit);
#else
	(void)memory;
#endif
}

#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define RETURN(action) BPF_STMT(BPF_RET | BPF_K, action)
#define IF_EQUAL(value, yes, no) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, yes, no)
#define IF_ANY_BIT(value, yes, no) BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, value, yes, no)
#define ALLOW(name) IF_EQUAL(SYS_##name, 0, 1), RETURN(SECCOMP_RET_ALLOW)
// Allowed only while the argument (its low half) has none of the bits.
#define ALLOW_WITHOUT(name, argument, bits)                                                        \
	IF_EQUAL(SYS_##name, 0, 4), LOAD(args[argument]), IF_ANY_BIT(bits, 1, 0),                  \
		RETURN(SECCOMP_RET_ALLOW), RETURN(SECCOMP_RET_ERRNO | EACCES)

// Other system calls fail with EPERM instead of killing: a libc that tries a new system call has a
// fallback, and an attacker gains nothing.
static const struct sock_filter filter[] = {
	LOAD(arch),
	IF_EQUAL(AUDIT_ARCH_X86_64, 1, 0),
	RETURN(SECCOMP_RET_KILL_PROCESS),
	LOAD(nr), // x32 numbers have bit 30 set and match nothing
	ALLOW(pread64),
	ALLOW(read),
	ALLOW(recvfrom),
	ALLOW(recvmsg),
	ALLOW(sendto),
	ALLOW(sendmsg),
	ALLOW(poll),
	ALLOW(wait4),
	ALLOW(write),
	ALLOW(close),
	ALLOW(brk),
	ALLOW_WITHOUT(mmap, 2, PROT_EXEC),
	ALLOW(munmap),
	ALLOW(mremap),
	ALLOW(madvise),
	ALLOW_WITHOUT(mprotect, 2, PROT_EXEC),
	ALLOW_WITHOUT(openat, 2, O_WRONLY | O_RDWR | O_CREAT | O_TRUNC),
	ALLOW(fstat),
	ALLOW(newfstatat),
	ALLOW(readlink),
	ALLOW(lseek),
	ALLOW(fcntl),
	ALLOW(getdents64),
	ALLOW(readv),
	ALLOW(writev),
	ALLOW(fsync),
	ALLOW(futex),
	ALLOW(clock_gettime),
	ALLOW(getpid),
	ALLOW(getppid),
	ALLOW(gettid),
	ALLOW(getrandom),
	ALLOW(setitimer),
	ALLOW(memfd_create), // the vdso of a core file
	ALLOW(rt_sigaction),
	ALLOW(rt_sigprocmask),
	ALLOW(rt_sigreturn),
	ALLOW(sigaltstack),
	ALLOW(restart_syscall),
	ALLOW(exit),
	ALLOW(exit_group),
	RETURN(SECCOMP_RET_ERRNO | EPERM),
};

static struct stall_error *install_filter(void)
{
	struct sock_fprog program = {
		.len = sizeof(filter) / sizeof(filter[0]),
		.filter = (struct sock_filter *)filter,
	};

	if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) == 0)
		return NULL;
	// A kernel built without seccomp: everything else still holds.
	if (errno == EINVAL || errno == ENOSYS)
		return NULL;
	return stall_error_os(errno, "cannot install the seccomp filter");
}

struct stall_error *stall_sandbox_enter(const struct stall_sandbox_options *options)
{
	drop_bounding_set();
	if (!options->keep_uid)
		become_nobody();
	drop_capabilities();
	// After the change of credentials, which clears it.
	if (options->die_with_parent && prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) < 0)
		return stall_error_os(errno, "cannot tie the process to its parent");
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
		return stall_error_os(errno, "cannot give up new privileges");
	prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
	set_limits(options->memory_limit);
	return install_filter();
}
