// SPDX-License-Identifier: Apache-2.0
#include "snapshot/blocked_files.h"

#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>

#include "base/cleanup.h"
#include "snapshot/proc_thread.h"
#include "snapshot/snapshot.h"

// Of a host with containers there can be thousands of mounts, each of them up to 4 KiB.
#define MAX_MOUNTS_BYTES (1 << 20)

// Those whose first argument is a file that a disk or a file system can hold up.
static bool has_file(int64_t call)
{
	switch (call) {
	case SYS_read:
	case SYS_write:
	case SYS_readv:
	case SYS_writev:
	case SYS_pread64:
	case SYS_pwrite64:
	case SYS_preadv:
	case SYS_pwritev:
	case SYS_preadv2:
	case SYS_pwritev2:
	case SYS_fsync:
	case SYS_fdatasync:
	case SYS_sync_file_range:
	case SYS_syncfs:
	case SYS_fallocate:
	case SYS_ftruncate:
	case SYS_lseek:
		return true;
	default:
		return false;
	}
}

/* Mounts. */

// Space, tab, newline and backslash are written as three octal digits.
static void unescape(char *text)
{
	char *to = text;

	for (; *text; text++, to++) {
		if (text[0] == '\\' && text[1] >= '0' && text[1] <= '3' && text[2] >= '0' &&
		    text[2] <= '7' && text[3] >= '0' && text[3] <= '7') {
			*to = (char)((text[1] - '0') << 6 | (text[2] - '0') << 3 | (text[3] - '0'));
			text += 3;
		} else {
			*to = *text;
		}
	}
	*to = '\0';
}

bool stall_mount_parse(char *line, struct stall_mount *ret)
{
	enum { ID, PARENT, DEVICE_NUMBER, ROOT, POINT, OPTIONS, FIELDS };
	char *fields[FIELDS], *rest, *save = NULL;

	rest = strstr(line, " - ");
	if (!rest)
		return false;
	*rest = '\0';
	for (int i = 0; i < FIELDS; i++) {
		fields[i] = strtok_r(i ? NULL : line, " ", &save);
		if (!fields[i])
			return false;
	}
	char *type = strtok_r(rest + strlen(" - "), " ", &save);
	char *device = strtok_r(NULL, " ", &save);
	if (!type || !device)
		return false;
	unescape(fields[ROOT]);
	unescape(fields[POINT]);
	unescape(device);
	*ret = (struct stall_mount){
		.id = atoi(fields[ID]),
		.device_number = fields[DEVICE_NUMBER],
		.root = fields[ROOT],
		.point = fields[POINT],
		.type = type,
		.device = device,
	};
	return true;
}

char *stall_mounts_read(int folder, const char *path)
{
	_cleanup_close_ int fd = openat(folder, path, O_RDONLY | O_CLOEXEC);
	_cleanup_free_ char *text = fd < 0 ? NULL : malloc(MAX_MOUNTS_BYTES);
	size_t used = 0;
	ssize_t got;

	if (!text)
		return NULL;
	while ((got = read(fd, text + used, MAX_MOUNTS_BYTES - 1 - used)) > 0)
		used += got;
	if (got < 0)
		return NULL;
	text[used] = '\0';
	return no_cleanup_ptr(text);
}

// Consumes the text.
static bool find_mount(char *text, int id, const char *device_number, struct stall_mount *ret)
{
	char *save = NULL;

	for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
		if (!stall_mount_parse(line, ret))
			continue;
		if (device_number ? !strcmp(ret->device_number, device_number) : ret->id == id)
			return true;
	}
	return false;
}

// A mount of another namespace is looked for among ours by its device: of one file system each
// mount point serves as well as another.
static void read_mount(const struct stall_target *target, struct stall_blocked_file *file)
{
	_cleanup_free_ char *theirs = stall_mounts_read(target->procfd, "mountinfo"), *ours = NULL;
	struct stall_mount mount, here;

	if (!theirs || !find_mount(theirs, file->mount_id, NULL, &mount))
		return;
	file->device = strdup(mount.device);
	file->type = strdup(mount.type);
	ours = stall_mounts_read(AT_FDCWD, "/proc/self/mountinfo");
	if (ours && find_mount(ours, 0, mount.device_number, &here))
		file->mount = strdup(here.point);
}

/* Files. */

static int read_mount_id(const struct stall_target *target, int number)
{
	char path[64], text[256];
	int id = -1;

	snprintf(path, sizeof(path), "fdinfo/%d", number);
	_cleanup_close_ int fd = openat(target->procfd, path, O_RDONLY | O_CLOEXEC);
	ssize_t size = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
	if (size < 0)
		return -1;
	text[size] = '\0';
	const char *field = strstr(text, "mnt_id:");
	return field && sscanf(field, "mnt_id: %d", &id) == 1 ? id : -1;
}

static char *copy(const char *text)
{
	return text ? strdup(text) : NULL;
}

// Files of one server are on few mounts.
static bool copy_mount(const struct stall_snapshot *snapshot,
		       const struct stall_blocked_files *files, struct stall_blocked_file *file)
{
	uint32_t process = snapshot->threads[file->thread].process;

	for (size_t i = 0; i < files->count; i++) {
		const struct stall_blocked_file *known = &files->files[i];

		if (known->mount_id != file->mount_id ||
		    snapshot->threads[known->thread].process != process)
			continue;
		file->mount = copy(known->mount);
		file->device = copy(known->device);
		file->type = copy(known->type);
		return true;
	}
	return false;
}

static char *read_path(const struct stall_target *target, int number)
{
	char name[64], path[PATH_MAX], root[PATH_MAX];

	snprintf(name, sizeof(name), "fd/%d", number);
	ssize_t size = readlinkat(target->procfd, name, path, sizeof(path) - 1);
	// A socket and a pipe have no path, and no disk.
	if (size <= 0 || *path != '/')
		return NULL;
	path[size] = '\0';
	stall_target_root(target, root, sizeof(root));
	return strdup(stall_path_in_root(path, root));
}

static void file_deinit(struct stall_blocked_file *file)
{
	free(file->path);
	free(file->mount);
	free(file->device);
	free(file->type);
}

// Its number may be of another file by now, unless the thread is still in the call.
static bool is_still_blocked(const struct stall_target *target, const struct stall_thread *thread)
{
	struct stall_proc_syscall call;
	_cleanup_error_ struct stall_error *err =
		stall_proc_syscall_read(target, thread->tid, &call);

	return !err && call.blocked && call.number == thread->syscall &&
	       !memcmp(call.args, thread->args, sizeof(call.args));
}

static void read_file(const struct stall_snapshot *snapshot, uint32_t index,
		      struct stall_blocked_files *files)
{
	const struct stall_thread *thread = &snapshot->threads[index];
	const struct stall_target *target = &snapshot->processes[thread->process].target;
	struct stall_blocked_file *file = &files->files[files->count];

	*file = (struct stall_blocked_file){
		.thread = index,
		.mount_id = read_mount_id(target, (int)thread->args[0]),
		.path = read_path(target, (int)thread->args[0]),
	};
	if (file->path && file->mount_id >= 0 && !copy_mount(snapshot, files, file))
		read_mount(target, file);
	if (file->path && is_still_blocked(target, thread))
		files->count++;
	else
		file_deinit(file);
}

void stall_blocked_files_deinit(struct stall_blocked_files *files)
{
	while (files->count)
		file_deinit(&files->files[--files->count]);
}

const struct stall_blocked_file *stall_blocked_file_of(const struct stall_blocked_files *files,
						       uint32_t thread)
{
	for (size_t i = 0; i < files->count; i++)
		if (files->files[i].thread == thread)
			return &files->files[i];
	return NULL;
}

void stall_blocked_files_read(const struct stall_snapshot *snapshot,
			      struct stall_blocked_files *ret)
{
	ret->count = 0;
	if (snapshot->memory.read) // no live process
		return;
	for (size_t i = 0; i < snapshot->thread_count; i++) {
		const struct stall_thread *thread = &snapshot->threads[i];

		if (ret->count == STALL_MAX_BLOCKED_FILES)
			return;
		if (thread->state == 'D' && !thread->unchanged && thread->in_syscall &&
		    has_file(thread->syscall))
			read_file(snapshot, (uint32_t)i, ret);
	}
}
