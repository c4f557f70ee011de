// SPDX-License-Identifier: Apache-2.0
// A program that tests the recorder runs itself again for each of its scenes, with the environment
// that the scene is for: the recorder reads it once in the life of a process.
#ifndef STALL_RECORDING_H
#define STALL_RECORDING_H

#include <dirent.h>
#include <limits.h>
#include <linux/magic.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "check.h"
#include "inproc/hooks_wait.h"
#include "inproc/recorder.h"
#include "inproc/recorder_threads.h"
#include "rings/ring_file.h"

#define RECORDING_MAX_ENV 8

struct recording {
	pid_t pid;
	int out;	// its output
	FILE *err;	// its standard error, to be read when it has ended
	char text[512]; // of it
};

// `env`: NULL-terminated "NAME=VALUE". The directory is that of the ring, NULL: none is set.
static inline void recording_start(struct recording *scene, const char *name, const char *directory,
				   const char *const *env)
{
	int out[2];

	scene->err = tmpfile();
	if (!scene->err || pipe(out) < 0)
		abort();
	scene->pid = fork();
	if (scene->pid == 0) {
		dup2(out[1], STDOUT_FILENO);
		dup2(fileno(scene->err), STDERR_FILENO);
		close(out[0]);
		unsetenv("XDG_RUNTIME_DIR");
		if (directory)
			setenv("STALLSCOPE_RUNTIME_DIR", directory, 1);
		for (; env && *env; env++)
			putenv((char *)*env);
		execl("/proc/self/exe", "recording", name, (char *)NULL);
		_exit(127);
	}
	close(out[1]);
	scene->out = out[0];
}

// A line, without its end; false: it has ended.
static inline bool recording_read_line(struct recording *scene, char *line, size_t size)
{
	size_t used = 0;

	for (; used + 1 < size; used++)
		if (read(scene->out, line + used, 1) != 1 || line[used] == '\n')
			break;
	line[used] = '\0';
	return used > 0;
}

// Returns the exit code, or minus the signal. scene->text is its output on standard error.
static inline int recording_end(struct recording *scene, int signal)
{
	char rest[256];
	int status = 0;

	if (signal)
		kill(scene->pid, signal);
	while (!signal && read(scene->out, rest, sizeof(rest)) > 0)
		;
	waitpid(scene->pid, &status, 0);
	close(scene->out);
	rewind(scene->err);
	size_t n = fread(scene->text, 1, sizeof(scene->text) - 1, scene->err);
	scene->text[n] = '\0';
	fclose(scene->err);
	return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

static inline int recording_lines(const char *text)
{
	int lines = 0;

	for (; (text = strchr(text, '\n')); text++)
		lines++;
	return lines;
}

// How many rings of the process (0: of any) there are; the path of one of them.
static inline int recording_rings(const char *directory, pid_t pid, char path[PATH_MAX])
{
	DIR *dir = opendir(directory);
	struct dirent *entry;
	char prefix[16] = "";
	int count = 0;

	if (pid)
		snprintf(prefix, sizeof(prefix), "%d-", pid);
	while (dir && (entry = readdir(dir))) {
		if (!strstr(entry->d_name, STALL_RING_SUFFIX) ||
		    strncmp(entry->d_name, prefix, strlen(prefix)))
			continue;
		count++;
		if (path)
			snprintf(path, PATH_MAX, "%.3800s/%s", directory, entry->d_name);
	}
	if (dir)
		closedir(dir);
	return count;
}

static inline struct stall_ring *recording_open(const char *directory, pid_t pid)
{
	struct stall_ring *ring = NULL;
	char path[PATH_MAX] = "";

	CHECK_INT(recording_rings(directory, pid, path), 1);
	if (path[0])
		CHECK_OK(stall_ring_open(path, true, &ring));
	return ring;
}

// In memory, where there is such a file system: on others the size of a file with holes means
// little.
static inline void recording_make_directory(char directory[PATH_MAX])
{
	struct statfs fs;
	bool has_memory = !statfs("/dev/shm", &fs) && fs.f_type == TMPFS_MAGIC;

	snprintf(directory, PATH_MAX, "%s/recorder-XXXXXX", has_memory ? "/dev/shm" : "/tmp");
	if (!mkdtemp(directory))
		abort();
}

// Mounts a small disk there, where this process may.
static inline bool recording_mount(const char *directory, const char *options)
{
	if (mount("none", directory, "tmpfs", 0, options) == 0)
		return true;
	CHECK_INT(errno, EPERM);
	printf("not tried: a full disk, since this process may not mount\n");
	return false;
}

// Detaches, since a reader of /proc/PID/maps may keep a mapped file for a moment.
static inline void recording_unmount(const char *directory)
{
	CHECK_INT(umount2(directory, MNT_DETACH), 0);
}

static inline void recording_remove_directory(const char *directory)
{
	char path[PATH_MAX];

	while (recording_rings(directory, 0, path))
		unlink(path);
	CHECK_INT(rmdir(directory), 0);
}

/* In a scene. */

static inline struct recorder_wait recording_lock(const void *object)
{
	return (struct recorder_wait){
		.kind = STALL_WAIT_FUTEX,
		.operation = STALL_RING_MUTEX_LOCK,
		.object = (uintptr_t)object,
		.fd = -1,
	};
}

// One wait from its begin to its end. False: it was not recorded.
static inline bool recording_wait(const struct recorder_wait *wait, bool with_stack)
{
	struct recorder_thread *thread = recorder_enter();
	struct recorder_place place;

	if (!thread)
		return false;
	hook_here(&place);
	recorder_begin(thread, wait, &place, with_stack);
	recorder_end(thread, 0, 0);
	recorder_leave(thread);
	return true;
}

static void *recording_begin(void *start)
{
	struct recorder_run run = recorder_thread_begins(start);

	return run.run(run.argument);
}

// As the library's pthread_create() does it. The thread says itself that it ends, if it does.
static inline void recording_create(pthread_t *thread, const pthread_attr_t *attr,
				    void *(*run)(void *), void *argument)
{
	struct recorder_start *start =
		recorder_before_thread((struct recorder_run){run, argument}, 0);

	CHECK_INT(pthread_create(thread, attr, recording_begin, start), 0);
}

static inline bool recording_wait_once(void)
{
	static pthread_mutex_t mutex;
	struct recorder_wait wait = recording_lock(&mutex);

	return recording_wait(&wait, true);
}

#endif
