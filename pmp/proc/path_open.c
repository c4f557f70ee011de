// SPDX-License-Identifier: Apache-2.0
#include "proc/path_open.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/child_process.h"
#include "base/cleanup.h"
#include "proc/read_call.h"

static struct stall_read_cause cause_of(const struct stall_target *target, uint64_t device)
{
	return (struct stall_read_cause){
		.pid = target ? target->pid : 0,
		.start_time = target ? target->start_time : 0,
		.is_path = true,
		.device = device,
	};
}

#define MAX_ROOTS 64

static struct {
	int fd;
	char *path;
	bool is_trusted;
} roots[MAX_ROOTS];
static int root_count;
static stall_path_opener_fn opener;

struct stall_error *stall_path_add_root(const char *path, unsigned int how, int *ret)
{
	const struct stall_path where = {.folder = AT_FDCWD, .name = path};
	int fd, at = 0;
	struct stall_error *err = stall_path_open(&where, STALL_PATH_FOLDER | how, &fd, NULL);

	if (err)
		return err;
	while (at < root_count && strcmp(roots[at].path, path))
		at++;
	char *copy = at == MAX_ROOTS ? NULL : at < root_count ? roots[at].path : strdup(path);
	if (!copy) {
		close(fd);
		return at < MAX_ROOTS
			       ? &stall_enomem
			       : stall_error_create(STALL_ERROR_USAGE,
						    "more than %d folders to search", MAX_ROOTS);
	}
	if (at < root_count)
		close(roots[at].fd); // another folder may have the path by now
	else
		root_count++;
	roots[at].fd = fd;
	roots[at].path = copy;
	roots[at].is_trusted = how & STALL_PATH_TRUSTED;
	*ret = STALL_PATH_FIRST_ROOT - at;
	return NULL;
}

bool stall_path_is_root(int folder)
{
	return folder <= STALL_PATH_FIRST_ROOT && folder > STALL_PATH_FIRST_ROOT - root_count;
}

void stall_path_set_opener(stall_path_opener_fn use)
{
	opener = use;
}

// By the parent of a sandbox; else the reading child says so.
static struct stall_error *late_error(const struct stall_path *path)
{
	return stall_error_create(STALL_ERROR_LATE, "%.200s: its disk does not answer", path->name);
}

// The path, and behind its end that of its folder, for messages. Returns the size; 0: too long.
static size_t join(const struct stall_path *path, char ret[2 * PATH_MAX])
{
	const char *folder = stall_path_is_root(path->folder)
				     ? roots[STALL_PATH_FIRST_ROOT - path->folder].path
				     : "";
	size_t length = strlen(path->name) + 1, size = length + strlen(folder) + 1;

	if (length > PATH_MAX || size > (size_t)2 * PATH_MAX)
		return 0;
	memcpy(ret, path->name, length);
	memcpy(ret + length, folder, size - length);
	return size;
}

static void set_folder(const struct stall_path *path, struct stall_read_call *call)
{
	int root = STALL_PATH_FIRST_ROOT - path->folder;

	if (path->folder == STALL_PATH_IN_ROOT)
		call->message.below = STALL_READ_BELOW_ROOT;
	if (path->folder == STALL_PATH_IN_ROOT || path->folder == STALL_PATH_IN_PROC) {
		call->given = path->target ? path->target->procfd : -1;
	} else if (stall_path_is_root(path->folder)) {
		call->given = roots[root].fd;
		if (!roots[root].is_trusted) {
			call->message.below = STALL_READ_BELOW_FOLDER;
			call->message.how &= ~(uint32_t)STALL_PATH_TRUSTED;
		}
	} else if (path->folder == AT_FDCWD) {
		call->given = -1;
	}
}

static int open_by_child(const struct stall_path *path, unsigned int how, int *ret_fd,
			 struct stall_path_status *ret_status, char *ret_text, size_t size,
			 struct stall_error **ret_err)
{
	char text[2 * PATH_MAX];
	struct stall_read_call call = {
		.cause = cause_of(path->target, path->device),
		.message = {.op = STALL_OPEN_PATH, .size = join(path, text), .how = how},
		.in = text,
		.out = ret_text,
		.out_size = size,
		.given = path->folder,
	};

	if (!call.message.size)
		return ENAMETOOLONG;
	set_folder(path, &call);
	*ret_err = stall_read_call(&call);
	if (*ret_err)
		return 0;
	*ret_status = call.status;
	*ret_fd = call.fd;
	return call.message.status;
}

static struct stall_error *open_with_text(const struct stall_path *path, unsigned int how,
					  int *ret_fd, struct stall_path_status *ret_status,
					  char *text, size_t size)
{
	struct stall_path_status status = {};
	struct stall_error *err = NULL;
	int fd = -1;
	int errnum = opener ? opener(path, how, &fd, &status, text, size)
			    : open_by_child(path, how, &fd, &status, text, size, &err);

	*ret_fd = -1;
	if (err)
		return err;
	text[size - 1] = '\0';
	if (errnum == STALL_PATH_DISTRUST)
		return stall_error_create(STALL_ERROR_PERMISSION, "%s", text);
	if (errnum == ETIME)
		return late_error(path);
	if (!errnum && fd < 0)
		errnum = EMFILE;
	if (errnum)
		return stall_error_os(errnum, "cannot open %.200s", path->name);
	if (ret_status)
		*ret_status = status;
	*ret_fd = fd;
	return NULL;
}

struct stall_error *stall_path_open(const struct stall_path *path, unsigned int how, int *ret_fd,
				    struct stall_path_status *ret_status)
{
	char text[1024] = "";

	return open_with_text(path, how, ret_fd, ret_status, text, sizeof(text));
}

struct stall_error *stall_path_real(const struct stall_path *path, unsigned int how, char *ret,
				    size_t size)
{
	_cleanup_close_ int fd = -1;

	ret[0] = '\0';
	return open_with_text(path, how | STALL_PATH_READ | STALL_PATH_NAME, &fd, NULL, ret, size);
}

static int call_with_file(struct stall_read_call *call)
{
	struct stall_path_status status;

	call->cause = cause_of(NULL, stall_fd_status(call->given, &status) ? status.dev : 0);
	_cleanup_error_ struct stall_error *err = stall_read_call(call);
	if (err)
		return err->code == STALL_ERROR_LATE ? ETIME : EIO;
	return call->message.status;
}

static int pass_by_child(int socket, const void *bytes, size_t size, int fd)
{
	struct stall_read_call call = {
		.message = {.op = STALL_PASS_FILE, .size = size},
		.in = bytes,
		.given = fd,
		.to = socket,
	};

	return call_with_file(&call);
}

int stall_path_work(int fd, stall_path_work_fn work, void *arg, size_t size)
{
	struct stall_read_call call = {
		.message = {.op = STALL_WORK_ON_FILE, .size = size, .work = work},
		.in = arg,
		.out = arg,
		.out_size = size,
		.given = fd,
	};

	return call_with_file(&call);
}

int stall_path_pass(int socket, const void *bytes, size_t size, int fd)
{
	struct iovec part = {(void *)bytes, size};

	if (fd >= 0 && fcntl(fd, F_GETFL) & O_PATH)
		return pass_by_child(socket, bytes, size, fd);
	return stall_send_descriptor(socket, &part, 1, fd, MSG_DONTWAIT) < 0 ? errno : 0;
}

struct stall_error *stall_path_status(const struct stall_path *path, unsigned int how,
				      struct stall_path_status *ret)
{
	_cleanup_close_ int fd = -1;

	return stall_path_open(path, how | STALL_PATH_STATUS, &fd, ret);
}

/* Folders. */

struct stall_error *stall_folder_next(int folder, void *ret, size_t size, size_t *ret_size)
{
	struct stall_read_call call = {
		.cause = cause_of(NULL, 0),
		.message = {.op = STALL_LIST_FOLDER,
			    .size = size < STALL_READ_COPY ? size : STALL_READ_COPY},
		.given = folder,
		.out = ret,
		.out_size = size,
	};
	struct stall_error *err = stall_read_call(&call);

	if (!err && call.message.status)
		err = stall_error_os(call.message.status, "cannot list a folder");
	*ret_size = err ? 0 : call.message.size;
	return err;
}

bool stall_folder_entry_next(const void *piece, size_t size, size_t *at,
			     struct stall_folder_entry *ret)
{
	while (*at < size) {
		const struct dirent64 *entry = (const void *)((const char *)piece + *at);

		*at += entry->d_reclen;
		if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
			continue;
		*ret = (struct stall_folder_entry){entry->d_name, entry->d_type};
		return true;
	}
	return false;
}
