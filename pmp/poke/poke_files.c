// SPDX-License-Identifier: Apache-2.0
#include "poke/poke_files.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"

struct stall_error *stall_poke_file_parse(const char *text, struct stall_poke_file *ret)
{
	struct stall_poke_file file = {};
	int end = 0;

	if (sscanf(text, "%d:%" SCNu64 ":%" SCNu64 "%n", &file.fd, &file.dev, &file.ino, &end) !=
		    3 ||
	    text[end] || file.fd < 0)
		return stall_error_create(STALL_ERROR_USAGE, "--file \"%.60s\": not FD:DEV:INO",
					  text);
	*ret = file;
	return NULL;
}

struct stall_error *stall_open_file_get(const struct stall_target *target,
					const struct stall_poke_file *file,
					struct stall_open_file *ret)
{
	_cleanup_close_ int copy = syscall(SYS_pidfd_getfd, target->pidfd, file->fd, 0);
	struct stat st;

	if (copy < 0 && errno == EBADF) {
		*ret = (struct stall_open_file){.copy = -1};
		return stall_target_check(target);
	}
	if (copy < 0)
		return stall_error_os(errno, "cannot get descriptor %d of process %d", file->fd,
				      target->pid);
	if (fstat(copy, &st) < 0)
		return stall_error_os(errno, "descriptor %d of process %d", file->fd, target->pid);
	if (st.st_dev != file->dev || st.st_ino != file->ino) {
		*ret = (struct stall_open_file){.copy = -1};
		return NULL;
	}
	int flags = fcntl(copy, F_GETFL);
	if (flags < 0)
		return stall_error_os(errno, "descriptor %d of process %d", file->fd, target->pid);
	*ret = (struct stall_open_file){.copy = copy, .flags = flags};
	copy = -1;
	return NULL;
}

// struct statx of Linux 6.1 and later, which the headers of some systems do not have whole
// (include/uapi/linux/stat.h): 256 bytes.
#define DIOALIGN 0x2000u
struct statx_dio {
	uint32_t mask;
	uint8_t other[148];
	uint32_t memory, offset;
	uint8_t rest[96];
};
_Static_assert(sizeof(struct statx_dio) == 256, "the kernel writes 256 bytes");

struct stall_alignment stall_alignment_read(int fd)
{
	struct statx_dio buf = {};

	if (syscall(SYS_statx, fd, "", AT_EMPTY_PATH, DIOALIGN, &buf) < 0 || !(buf.mask & DIOALIGN))
		return (struct stall_alignment){};
	return (struct stall_alignment){.memory = buf.memory, .offset = buf.offset};
}

static struct stall_error *check_file(const struct stall_target *target,
				      const struct stall_poke_file *file)
{
	struct stall_open_file open;
	struct stall_error *err = stall_open_file_get(target, file, &open);

	if (err)
		return err;
	if (open.copy < 0)
		return stall_error_create(STALL_ERROR_AGAIN,
					  "descriptor %d of process %d is no longer that file",
					  file->fd, target->pid);
	_cleanup_close_ int copy = open.copy;
	struct stall_alignment alignment = stall_alignment_read(copy);
	if (open.flags & O_DIRECT)
		return stall_error_create(STALL_ERROR_AGAIN,
					  "descriptor %d of process %d has O_DIRECT already",
					  file->fd, target->pid);
	if (!alignment.memory || !alignment.offset)
		return stall_error_create(
			STALL_ERROR_UNSUPPORTED,
			"descriptor %d of process %d: the file system does not say which "
			"alignment direct writes need (STATX_DIOALIGN), so a write of the server "
			"could fail",
			file->fd, target->pid);
	if (alignment.memory > STALL_POKE_MAX_BLOCK || alignment.offset > STALL_POKE_MAX_BLOCK)
		return stall_error_create(
			STALL_ERROR_UNSUPPORTED,
			"descriptor %d of process %d: direct writes must be aligned to %u bytes of "
			"memory and %u of the file, and the server aligns to %d: its writes would "
			"fail",
			file->fd, target->pid, alignment.memory, alignment.offset,
			STALL_POKE_MAX_BLOCK);
	return NULL;
}

struct stall_error *stall_poke_files_check(const struct stall_poke *poke)
{
	struct stall_error *err = NULL;

	for (size_t i = 0; !err && i < poke->file_count; i++)
		err = check_file(&poke->process.target, &poke->files[i]);
	return err;
}

struct stall_error *stall_poke_files_count(const struct stall_poke *poke, size_t *ret_direct,
					   size_t *ret_open)
{
	size_t direct = 0, open_files = 0;

	for (size_t i = 0; i < poke->file_count; i++) {
		struct stall_open_file open;
		struct stall_error *err =
			stall_open_file_get(&poke->process.target, &poke->files[i], &open);

		if (err)
			return err;
		if (open.copy < 0)
			continue;
		close(open.copy);
		open_files++;
		direct += (open.flags & O_DIRECT) != 0;
	}
	*ret_direct = direct;
	*ret_open = open_files;
	return NULL;
}

static struct stall_error *change(const struct stall_poke_process *process,
				  const struct stall_poke_file *file, bool direct)
{
	const struct stall_target *target = &process->target;
	struct stall_open_file open = {.copy = -1};
	// Another program may have inherited the file.
	struct stall_error *err = stall_poke_process_check(process);

	if (!err)
		err = stall_open_file_get(target, file, &open);
	if (err || open.copy < 0)
		return err;
	_cleanup_close_ int copy = open.copy;
	int flags = direct ? open.flags | O_DIRECT : open.flags & ~O_DIRECT;
	if (flags != open.flags && fcntl(copy, F_SETFL, flags) < 0)
		return stall_error_os(errno, "cannot %s O_DIRECT on descriptor %d of process %d",
				      direct ? "set" : "clear", file->fd, target->pid);
	return NULL;
}

struct stall_error *stall_poke_files_set(const struct stall_poke *poke)
{
	struct stall_error *err = stall_poke_files_check(poke);
	size_t done = 0;

	for (; !err && done < poke->file_count; done++)
		err = change(&poke->process, &poke->files[done], true);
	// The last one is the one that failed.
	for (size_t i = 0; err && i < done; i++)
		stall_error_destroy(change(&poke->process, &poke->files[i], false));
	return err;
}

struct stall_error *stall_poke_files_undo(const struct stall_poke *poke)
{
	struct stall_error *first = NULL;

	for (size_t i = 0; i < poke->file_count; i++) {
		struct stall_error *err = change(&poke->process, &poke->files[i], false);

		if (first)
			stall_error_destroy(err);
		else
			first = err;
	}
	return first;
}
