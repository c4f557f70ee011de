// SPDX-License-Identifier: Apache-2.0
// A program of tests/targets, started for a test and ended with it.
#ifndef STALL_TARGET_PROCESS_H
#define STALL_TARGET_PROCESS_H

#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

struct target_process {
	pid_t pid;    // 0: waited for already
	int stdin_fd; // the target ends when it closes
	char *facts;  // what it printed before "ready", lines
	FILE *answers;
};

// The child of this process that was made last; 0: there is none.
static inline pid_t last_child(void)
{
	char path[64];
	int pid = 0;

	snprintf(path, sizeof(path), "/proc/self/task/%d/children", getpid());
	FILE *file = fopen(path, "re");
	while (file && fscanf(file, "%d", &pid) == 1)
		;
	if (file)
		fclose(file);
	return pid;
}

// The path of a built target, or of a file in its folder.
static inline void target_path(const char *name, char path[PATH_MAX])
{
	ssize_t n = readlink("/proc/self/exe", path, PATH_MAX - 128);

	path[n < 0 ? 0 : n] = 0;
	char *slash = strrchr(path, '/');
	snprintf(slash ? slash : path, 128, "/../targets/target-%s", name);
}

static inline char *target_read_facts(FILE *out)
{
	char *facts = NULL, *line = NULL;
	size_t size = 0, capacity = 0;
	FILE *copy = open_memstream(&facts, &size);
	bool ready = false;

	while (!ready && getline(&line, &capacity, out) > 0) {
		ready = strcmp(line, "ready\n") == 0;
		fputs(line, copy);
	}
	fclose(copy);
	free(line);
	if (!ready) {
		free(facts);
		return NULL;
	}
	return facts;
}

// Its main thread says "ready" shortly before it blocks in read(2), system call 0.
static inline bool target_wait_reading(pid_t pid)
{
	char path[64], number[8] = "";

	snprintf(path, sizeof(path), "/proc/%d/syscall", pid);
	for (int i = 0; i < 100000; i++) { // only a failure takes this long
		FILE *file = fopen(path, "re");
		bool got = file && fgets(number, sizeof(number), file);

		if (file)
			fclose(file);
		if (got && strncmp(number, "0 ", 2) == 0)
			return true;
		usleep(1000);
	}
	return false;
}

// False where it is not built, or does not print "ready".
static inline bool target_start(struct target_process *target, const char *const *argv)
{
	char path[PATH_MAX];
	int in[2], out[2];

	target_path(argv[0], path);
	if (access(path, X_OK) < 0 || pipe(in) < 0 || pipe(out) < 0)
		return false;
	target->pid = fork();
	if (target->pid == 0) {
		dup2(in[0], 0);
		dup2(out[1], 1);
		for (int fd = 3; fd < 256; fd++)
			close(fd);
		execv(path, (char *const *)argv);
		_exit(127);
	}
	close(in[0]);
	close(out[1]);
	target->stdin_fd = in[1];
	target->answers = fdopen(out[0], "re");
	target->facts = target_read_facts(target->answers);
	return target->facts && target_wait_reading(target->pid);
}

static inline void target_stop(struct target_process *target)
{
	close(target->stdin_fd);
	if (target->pid > 0) {
		kill(target->pid, SIGKILL);
		waitpid(target->pid, NULL, 0);
	}
	free(target->facts);
	fclose(target->answers);
}

// Sends a command. False, and "" as the answer, where the target has ended.
static inline bool target_ask(struct target_process *target, const char *command, char *answer,
			      int size)
{
	*answer = 0;
	return dprintf(target->stdin_fd, "%s\n", command) > 0 &&
	       fgets(answer, size, target->answers);
}

// The number that a fact or an answer has under this name; 0: none.
static inline unsigned long target_number(const char *json, const char *name)
{
	char quoted[64];

	snprintf(quoted, sizeof(quoted), "\"%s\": ", name);
	const char *at = strstr(json, quoted);
	return at ? strtoul(at + strlen(quoted), NULL, 10) : 0;
}

#endif
