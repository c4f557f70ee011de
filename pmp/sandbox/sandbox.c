// SPDX-License-Identifier: Apache-2.0
#include "sandbox/sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/child_process.h"

// Above the users of hosts (0 to 60000, systemd's up to 0x7fffffff less these), and a container's
// shifted ones; a pid has 22 bits at most.
#define FIRST_UID 0x75400000U
// In a user namespace that maps 65536 users. Those of other processes are few.
#define FIRST_SMALL_UID 65520U
#define SMALL_UIDS 14U

#if defined(__SANITIZE_ADDRESS__)
#define HAVE_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HAVE_ASAN 1
#endif
#endif

static const struct {
	const char *name, *fix;
} layers[] = {
	[STALL_SANDBOX_UID] = {"a uid of its own", "give it CAP_SETUID and CAP_SETGID"},
	[STALL_SANDBOX_CAPABILITIES] = {"an empty set of capabilities", "allow capset(2)"},
	[STALL_SANDBOX_LANDLOCK] = {"Landlock",
				    "boot with lsm=landlock,... on Linux 5.13 or later"},
	[STALL_SANDBOX_SECCOMP] = {"seccomp", "take a kernel with CONFIG_SECCOMP_FILTER"},
};

const char *stall_sandbox_layer_name(enum stall_sandbox_layer layer)
{
	return layers[layer].name;
}

struct stall_error *stall_sandbox_check(unsigned int missing)
{
	char names[256] = "", fixes[512] = "";

	for (size_t i = 0; i < STALL_SANDBOX_LAYERS; i++) {
		if (!(missing & 1U << i))
			continue;
		size_t name = strlen(names), fix = strlen(fixes);

		snprintf(names + name, sizeof(names) - name, "%s%s", name ? ", " : "",
			 layers[i].name);
		snprintf(fixes + fix, sizeof(fixes) - fix, "%s%s", fix ? ", " : "", layers[i].fix);
	}
	return missing ? stall_error_create(STALL_ERROR_UNSUPPORTED,
					    "hostile files are parsed without %s; %s", names, fixes)
		       : NULL;
}

/* User and capabilities. */

// Works only with CAP_SETPCAP; no_new_privs forbids the same.
static void drop_bounding_set(void)
{
	for (unsigned long cap = 0; prctl(PR_CAPBSET_READ, cap, 0, 0, 0) >= 0; cap++)
		prctl(PR_CAPBSET_DROP, cap, 0, 0, 0);
}

static bool drop_capabilities(void)
{
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct none[2] = {};

	prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
	// A sandbox around may forbid it to a process that has none.
	syscall(SYS_capset, &header, none);
	return syscall(SYS_capget, &header, none) == 0 && !none[0].permitted && !none[1].permitted;
}

static bool become(uid_t uid)
{
	return setgroups(0, NULL) == 0 && setresgid(uid, uid, uid) == 0 &&
	       setresuid(uid, uid, uid) == 0;
}

// An ordinary user stays: it can do to its own processes what the others can do to it.
static bool change_user(void)
{
	return geteuid() != 0 || become(FIRST_UID + (uid_t)getpid()) ||
	       become(FIRST_SMALL_UID + (uid_t)getpid() % SMALL_UIDS);
}

/* Landlock. Younger than some headers: include/uapi/linux/landlock.h. */

struct landlock_ruleset {
	uint64_t files, network, scopes;
};

#ifndef SYS_landlock_create_ruleset
#define SYS_landlock_create_ruleset 444
#define SYS_landlock_restrict_self 446
#endif
#define LANDLOCK_VERSION 1U // landlock_create_ruleset(NULL, 0, this)

static bool enter_landlock(void)
{
	// By version: files 1 to 5, network from 4, scopes from 6.
	static const uint64_t files[] = {0, 0x1fff, 0x3fff, 0x7fff, 0x7fff, 0xffff};
	long version = syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_VERSION);

	if (version < 1)
		return false;
	struct landlock_ruleset rules = {
		.files = files[version < 5 ? version : 5],
		.network = version >= 4 ? 3 : 0,
		.scopes = version >= 6 ? 3 : 0,
	};
	size_t size = version >= 6 ? 24 : version >= 4 ? 16 : 8;
	int fd = (int)syscall(SYS_landlock_create_ruleset, &rules, size, 0);
	if (fd < 0)
		return false;
	bool entered = syscall(SYS_landlock_restrict_self, fd, 0) == 0;
	close(fd);
	return entered;
}

/* System calls. */

#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define RETURN(action) BPF_STMT(BPF_RET | BPF_K, action)
#define IF_EQUAL(value, yes, no) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, yes, no)
#define IF_ANY_BIT(value, yes, no) BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, value, yes, no)
#define REFUSE RETURN(SECCOMP_RET_ERRNO | EPERM)
#define ALLOW(name) IF_EQUAL(SYS_##name, 0, 1), RETURN(SECCOMP_RET_ALLOW)
// Arguments are compared by their low half: the kernel takes an int of each of these.
#define ALLOW_WITHOUT(name, argument, bits)                                                        \
	IF_EQUAL(SYS_##name, 0, 4), LOAD(args[argument]), IF_ANY_BIT(bits, 1, 0),                  \
		RETURN(SECCOMP_RET_ALLOW), REFUSE
#define ALLOW_WITH(name, argument, bits)                                                           \
	IF_EQUAL(SYS_##name, 0, 4), LOAD(args[argument]), IF_ANY_BIT(bits, 0, 1),                  \
		RETURN(SECCOMP_RET_ALLOW), REFUSE
#define ALLOW_ONE(name, argument, value)                                                           \
	IF_EQUAL(SYS_##name, 0, 4), LOAD(args[argument]), IF_EQUAL(value, 0, 1),                   \
		RETURN(SECCOMP_RET_ALLOW), REFUSE
#define ALLOW_TWO(name, argument, one, other)                                                      \
	IF_EQUAL(SYS_##name, 0, 5), LOAD(args[argument]), IF_EQUAL(one, 1, 0),                     \
		IF_EQUAL(other, 0, 1), RETURN(SECCOMP_RET_ALLOW), REFUSE

// Others fail with EPERM instead of killing: a libc that tries a new system call has a fallback, and
// who has taken the process over gains nothing.
static const struct sock_filter filter[] = {
	LOAD(arch),
	IF_EQUAL(AUDIT_ARCH_X86_64, 1, 0),
	RETURN(SECCOMP_RET_KILL_PROCESS),
	LOAD(nr), // x32 numbers have bit 30 set and match nothing
	ALLOW(pread64),
	ALLOW(read),
	ALLOW(readv),
	ALLOW(recvfrom),
	ALLOW(recvmsg),
	ALLOW(sendto),
	ALLOW(sendmsg),
	ALLOW(write),
	ALLOW(writev),
	ALLOW(poll),
	ALLOW(close),
	ALLOW(lseek),
	ALLOW(fstat),
	ALLOW_WITH(newfstatat, 3, AT_EMPTY_PATH),
	ALLOW_WITH(statx, 2, AT_EMPTY_PATH),
	ALLOW(getdents64),
	ALLOW_TWO(fcntl, 1, F_GETFD, F_GETFL),
	ALLOW(brk),
	ALLOW_WITHOUT(mmap, 2, PROT_EXEC),
	ALLOW(munmap),
	ALLOW(mremap),
	ALLOW(madvise),
	ALLOW_WITHOUT(mprotect, 2, PROT_EXEC),
	ALLOW_TWO(futex, 1, FUTEX_WAIT_PRIVATE, FUTEX_WAKE_PRIVATE),
	ALLOW(clock_gettime),
	ALLOW(getpid),
	ALLOW(getppid),
	ALLOW(gettid),
	ALLOW(geteuid),
	ALLOW(getrandom),
	ALLOW_ONE(setitimer, 0, ITIMER_PROF), // demangle.c
	ALLOW(wait4),
	ALLOW(rt_sigaction),
	ALLOW(rt_sigprocmask),
	ALLOW(rt_sigreturn),
	ALLOW(sigaltstack),
	ALLOW(restart_syscall),
	ALLOW(exit),
	ALLOW(exit_group),
	REFUSE,
};

static struct stall_error *enter_seccomp(unsigned int *missing)
{
	struct sock_fprog program = {
		.len = sizeof(filter) / sizeof(filter[0]),
		.filter = (struct sock_filter *)filter,
	};

	if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) == 0)
		return NULL;
	// A kernel built without seccomp: all else still holds.
	if (errno != EINVAL && errno != ENOSYS)
		return stall_error_os(errno, "cannot install the seccomp filter");
	*missing |= 1U << STALL_SANDBOX_SECCOMP;
	return NULL;
}

/* Limits. */

static void set_limit(int resource, uint64_t value)
{
	struct rlimit limit = {value, value};

	setrlimit((__rlimit_resource_t)resource, &limit);
}

static void set_limits(const struct stall_sandbox_options *options)
{
	static const int none[] = {RLIMIT_CORE, RLIMIT_NPROC, RLIMIT_MEMLOCK, RLIMIT_SIGPENDING,
				   RLIMIT_MSGQUEUE};

	for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++)
		set_limit(none[i], 0);
	set_limit(RLIMIT_FSIZE, STALL_SANDBOX_FILE);
	if (options->cpu_seconds)
		set_limit(RLIMIT_CPU, options->cpu_seconds);
#ifndef HAVE_ASAN // which reserves terabytes
	if (options->memory_limit)
		set_limit(RLIMIT_AS, options->memory_limit);
#endif
}

struct stall_error *stall_sandbox_enter(const struct stall_sandbox_options *options,
					unsigned int *ret_missing)
{
	unsigned int missing = 0;

	drop_bounding_set();
	set_limits(options); // as root: a user may not raise what is set already
	if (!change_user())
		missing |= 1U << STALL_SANDBOX_UID;
	if (!drop_capabilities())
		missing |= 1U << STALL_SANDBOX_CAPABILITIES;
	// After the change of credentials, which clears it.
	if (prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) < 0)
		return stall_error_os(errno, "cannot tie the process to its parent");
	if (getppid() != options->parent) // it has ended before that
		_exit(1);
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
		return stall_error_os(errno, "cannot give up new privileges");
	prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
	if (!enter_landlock())
		missing |= 1U << STALL_SANDBOX_LANDLOCK;
	struct stall_error *err = enter_seccomp(&missing);
	*ret_missing = missing;
	return err;
}

unsigned int stall_sandbox_try(void)
{
	const struct stall_sandbox_options options = {.parent = getpid()};
	unsigned int missing = (1U << STALL_SANDBOX_LAYERS) - 1;
	int fds[2];

	if (pipe2(fds, O_CLOEXEC) < 0)
		return missing;
	pid_t child = fork();
	if (child == 0) {
		unsigned int found;
		bool failed = stall_sandbox_enter(&options, &found) ||
			      write(fds[1], &found, sizeof(found)) != sizeof(found);

		_exit(failed);
	}
	close(fds[1]);
	if (child > 0 && read(fds[0], &missing, sizeof(missing)) < 0)
		missing = (1U << STALL_SANDBOX_LAYERS) - 1;
	close(fds[0]);
	if (child > 0)
		stall_child_end(child);
	return missing;
}
