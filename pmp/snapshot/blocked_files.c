// SPDX-License-Identifier: Apache-2.0
#include "snapshot/blocked_files.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>

#include "base/cleanup.h"
#include "proc/mounts.h"
#include "proc/proc_file.h"
#include "snapshot/proc_thread.h"
#include "snapshot/snapshot.h"

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
	_cleanup_free_ char *theirs = stall_mounts_read(target), *ours = NULL;
	struct stall_mount mount, here;

	if (!theirs || !find_mount(theirs, file->mount_id, NULL, &mount))
		return;
	file->device = strdup(mount.device);
	file->type = strdup(mount.type);
	ours = stall_mounts_read(NULL);
	if (ours && find_mount(ours, 0, mount.device_number, &here))
		file->mount = strdup(here.point);
}

/* Files. */

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
	char name[64], path[PATH_MAX];

	snprintf(name, sizeof(name), "fd/%d", number);
	// A socket and a pipe have no path, and no disk.
	if (!stall_proc_link_inside(target, name, path, sizeof(path)) || *path != '/')
		return NULL;
	return strdup(path);
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
		.mount_id = stall_proc_mount_id(target, (int)thread->args[0]),
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
