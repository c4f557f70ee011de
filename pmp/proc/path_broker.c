// SPDX-License-Identifier: Apache-2.0
#include "proc/path_broker.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "base/child_process.h"
#include "base/cleanup.h"
#include "base/trust.h"
#include "proc/path_open.h"

struct request {
	int32_t root;
	uint32_t how;
	char name[PATH_MAX];
};

struct answer {
	int32_t errnum;
	struct stall_path_status status;
	char text[PATH_MAX];
};

_Static_assert(sizeof(struct request) == 8 + PATH_MAX, "what a child in a sandbox sends");

static int asker = -1;

// Returns an errno.
static int ask_for(const struct stall_path *path, unsigned int how, int *ret_fd,
		   struct stall_path_status *ret, char *ret_text, size_t text_size)
{
	struct request request = {.root = path->folder, .how = how};
	struct answer answer;
	struct iovec out = {&request, sizeof(request)}, in = {&answer, sizeof(answer)};
	size_t size = strlen(path->name);

	*ret_fd = -1;
	if (path->target || size >= sizeof(request.name))
		return path->target ? EPERM : ENAMETOOLONG;
	memcpy(request.name, path->name, size);
	if (stall_send_descriptor(asker, &out, 1, -1, 0) < 0)
		return errno;
	if (stall_receive_descriptor(asker, &in, 1, ret_fd) != (ssize_t)sizeof(answer))
		return EPIPE;
	*ret = answer.status;
	snprintf(ret_text, text_size, "%s", answer.text);
	return answer.errnum;
}

void stall_path_ask(int socket)
{
	asker = socket;
	stall_path_set_opener(ask_for);
}

static bool stays_below(const char *name)
{
	for (const char *at = name; at; at = strchr(at, '/')) {
		at += strspn(at, "/");
		if (!strncmp(at, "..", 2) && (at[2] == '/' || !at[2]))
			return false;
	}
	return true;
}

// The child may have been taken over.
static struct stall_error *open_for(const struct request *request, int *ret_fd,
				    struct stall_path_status *ret, char ret_text[PATH_MAX])
{
	unsigned int how = request->how & ~(uint32_t)STALL_PATH_NAME & (2 * STALL_PATH_TRUSTED - 1);
	struct stall_path path = {.folder = request->root, .name = request->name};

	*ret_fd = -1;
	if (!stays_below(request->name))
		return stall_error_os(EINVAL, "%s", request->name);
	if (!stall_path_is_root(request->root)) {
		if (request->name[0] != '/' || (how & STALL_PATH_HOW) != STALL_PATH_READ)
			return stall_error_os(EPERM, "%s", request->name);
		path.folder = AT_FDCWD;
		how |= STALL_PATH_PUBLIC;
	} else {
		path.name += strspn(path.name, "/");
		if (!*path.name)
			path.name = ".";
	}
	struct stall_error *err = stall_path_open(&path, how, ret_fd, ret);
	if (!err && request->how & STALL_PATH_NAME)
		err = stall_path_real(&path, how, ret_text, PATH_MAX);
	return err;
}

bool stall_path_answer(int socket)
{
	_cleanup_close_ int fd = -1, unwanted = -1;
	struct request request;
	struct answer answer = {};
	struct iovec in = {&request, sizeof(request)};

	if (stall_receive_descriptor(socket, &in, 1, &unwanted) != (ssize_t)sizeof(request))
		return false;
	request.name[sizeof(request.name) - 1] = '\0';
	struct stall_error *err = open_for(&request, &fd, &answer.status, answer.text);
	if (err) {
		answer.errnum = stall_is_distrust(err)		? STALL_PATH_DISTRUST
				: err->code == STALL_ERROR_LATE ? ETIME
				: err->errnum			? err->errnum
								: EIO;
		snprintf(answer.text, sizeof(answer.text), "%s", err->message);
	}
	stall_error_destroy(err);
	// A file whose path could not be opened goes back no more than any other that failed.
	int errnum = answer.errnum ? answer.errnum
				   : stall_path_pass(socket, &answer, sizeof(answer), fd);
	if (!errnum)
		return true;
	answer.errnum = errnum;
	// Not blocking: a child that does not read its answers fills its own queue.
	return !stall_path_pass(socket, &answer, sizeof(answer), -1);
}
