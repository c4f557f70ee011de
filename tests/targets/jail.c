// SPDX-License-Identifier: Apache-2.0
// Runs a program as an unprivileged user of a hardened container does: in mount, pid and user
// namespaces of its own, without any capability, without a way to get one, and with a seccomp filter
// that refuses to read other processes and to load BPF programs.
//
//	jail PROGRAM [ARGUMENT...]            in a new jail
//	jail --join PID PROGRAM [ARGUMENT...]  in the jail of a process
// The jail's first process is the program; it ends with this one. Root starts it, since the program must not control the namespaces, except for the user's.
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pwd.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define USER "nobody"
#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

static pid_t inmate;

static void __attribute__((noreturn)) die(const char *what)
{
	fprintf(stderr, "jail: %s: %s\n", what, strerror(errno));
	exit(125);
}

static void write_file(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);

	if (fd < 0 || write(fd, text, strlen(text)) != (ssize_t)strlen(text))
		die(path);
	close(fd);
}

static int open_namespace(const char *pid, const char *name)
{
	char path[64];
	int fd;

	snprintf(path, sizeof(path), "/proc/%s/ns/%s", pid, name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		die(path);
	return fd;
}

static void become(const struct passwd *user)
{
	// Their groups were left before: a namespace may refuse setgroups(2).
	if (setresgid(user->pw_gid, user->pw_gid, user->pw_gid) ||
	    setresuid(user->pw_uid, user->pw_uid, user->pw_uid))
		die(USER);
}

// The user alone is known in it, under his own number.
static void make_user_namespace(const struct passwd *user)
{
	char map[64];

	become(user);
	// A change of user has made this process one whose files in /proc are root's.
	if (prctl(PR_SET_DUMPABLE, 1))
		die("PR_SET_DUMPABLE");
	if (unshare(CLONE_NEWUSER))
		die("a user namespace");
	write_file("/proc/self/setgroups", "deny");
	snprintf(map, sizeof(map), "%u %u 1", user->pw_gid, user->pw_gid);
	write_file("/proc/self/gid_map", map);
	snprintf(map, sizeof(map), "%u %u 1", user->pw_uid, user->pw_uid);
	write_file("/proc/self/uid_map", map);
}

static void drop_capabilities(void)
{
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = {};

	for (int i = 0; i <= CAP_LAST_CAP; i++)
		prctl(PR_CAPBSET_DROP, i); // fails for those that the kernel does not know
	if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) ||
	    syscall(SYS_capset, &header, none) || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
		die("dropping capabilities");
}

static void refuse_calls(void)
{
	static const int refused[] = {
		SYS_ptrace, SYS_process_vm_readv, SYS_process_vm_writev,
		SYS_bpf,    SYS_perf_event_open,  SYS_pidfd_getfd,
		SYS_kcmp,
	};
	struct sock_filter filter[6 + 2 * LENGTH(refused)];
	struct sock_fprog program = {.filter = filter};

	filter[program.len++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
							     offsetof(struct seccomp_data, arch));
	filter[program.len++] =
		(struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 1, 0);
	filter[program.len++] =
		(struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
	filter[program.len++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
							     offsetof(struct seccomp_data, nr));
	for (size_t i = 0; i < LENGTH(refused); i++) {
		filter[program.len++] =
			(struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, refused[i], 0, 1);
		filter[program.len++] =
			(struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM);
	}
	filter[program.len++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
		die("seccomp");
}

static void __attribute__((noreturn)) run(char **argv)
{
	drop_capabilities();
	// After the change of user, which would clear it (prctl(2)).
	if (prctl(PR_SET_PDEATHSIG, SIGKILL))
		die("PR_SET_PDEATHSIG");
	refuse_calls();
	execvp(argv[0], argv);
	die(argv[0]);
}

static void __attribute__((noreturn)) run_in_new(const struct passwd *user, char **argv)
{
	if (mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL))
		die("mounting /proc");
	make_user_namespace(user);
	run(argv);
}

static void pass_on(int signal)
{
	kill(inmate, signal);
}

static int wait_for_inmate(void)
{
	const struct sigaction action = {.sa_handler = pass_on, .sa_flags = SA_RESTART};
	int status;

	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGINT, &action, NULL);
	while (waitpid(inmate, &status, 0) < 0)
		if (errno != EINTR)
			die("waitpid");
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int main(int argc, char **argv)
{
	const struct passwd *user = getpwnam(USER);
	int user_namespace = -1;

	if (!user)
		die(USER);
	if (argc > 3 && strcmp(argv[1], "--join") == 0) {
		int mounts = open_namespace(argv[2], "mnt");
		int pids = open_namespace(argv[2], "pid");

		user_namespace = open_namespace(argv[2], "user");
		char *folder = getcwd(NULL, 0);

		if (setgroups(0, NULL) || setns(pids, CLONE_NEWPID) || setns(mounts, CLONE_NEWNS))
			die("joining the namespaces");
		// setns(2) has gone to the root of the other one.
		if (!folder || chdir(folder))
			die("the current folder");
		free(folder);
		argv += 2;
	} else if (argc > 1) {
		if (setgroups(0, NULL) || unshare(CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC) ||
		    mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL))
			die("namespaces of its own");
	} else {
		fprintf(stderr, "usage: jail [--join PID] PROGRAM [ARGUMENT...]\n");
		return 125;
	}
	inmate = fork();
	if (inmate < 0)
		die("fork");
	if (inmate)
		return wait_for_inmate();
	if (user_namespace < 0)
		run_in_new(user, argv + 1);
	if (setns(user_namespace, CLONE_NEWUSER))
		die("joining the user namespace");
	become(user);
	run(argv + 1);
}
