// SPDX-License-Identifier: Apache-2.0
#include "proc/descriptors.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "proc/paths.h"
#include "proc/proc_file.h"
#include "proc/read_call.h"
#include "proc/target.h"

#define PIECE 4096 // descriptors of a request

static bool take_descriptor(const struct stall_read_descriptor *found, char *path, const char *root,
			    struct stall_descriptor *ret)
{
	if (found->errnum)
		return false;
	*ret = (struct stall_descriptor){
		.fd = found->fd,
		.status = found->status,
		.deleted = found->status.nlink == 0,
	};
	if (ret->deleted)
		stall_path_cut_deleted(path);
	ret->path = stall_path_in_root(path, root);
	return true;
}

struct listing {
	const struct stall_target *target;
	char root[PATH_MAX];
	char *answer; // STALL_READ_COPY
	stall_descriptor_fn visit;
	void *arg;
	size_t lost;
	bool stopped;
};

// Returns how many of the numbers are done in *ret.
static struct stall_error *list_some(struct listing *listing, const int32_t *numbers, size_t count,
				     size_t *ret)
{
	struct stall_read_call call = {
		.cause = {.pid = listing->target->pid,
			  .start_time = listing->target->start_time,
			  .is_path = true},
		.message = {.op = STALL_LIST_DESCRIPTORS, .count = (uint32_t)count},
		.given = listing->target->procfd,
		.in = numbers,
		.out = listing->answer,
		.out_size = STALL_READ_COPY,
	};
	struct stall_error *err = stall_read_call(&call);

	if (err)
		return err;
	*ret = call.message.count;
	for (size_t at = 0; at < call.message.size && !listing->stopped;) {
		struct stall_read_descriptor found;
		struct stall_descriptor descriptor;

		memcpy(&found, listing->answer + at, sizeof(found));
		at += sizeof(found);
		if (take_descriptor(&found, listing->answer + at, listing->root, &descriptor))
			listing->stopped = !listing->visit(listing->arg, &descriptor);
		else
			listing->lost++;
		at += found.size;
	}
	return NULL;
}

// Those of one piece. What does not answer is lost, and so are those after it.
static struct stall_error *list_piece(struct listing *listing, const int32_t *numbers, size_t count)
{
	size_t done = 0;

	for (size_t at = 0; at < count && !listing->stopped; at += done) {
		struct stall_error *err = list_some(listing, numbers + at, count - at, &done);

		if (err && err->code == STALL_ERROR_LATE) {
			stall_error_destroy(err);
			listing->lost += count - at;
			return NULL;
		}
		if (err)
			return err;
	}
	return NULL;
}

struct stall_error *stall_descriptors_visit(const struct stall_target *target, size_t max,
					    stall_descriptor_fn visit, void *arg, size_t *ret_lost)
{
	_cleanup_free_ char *answer = malloc(STALL_READ_COPY);
	_cleanup_free_ int32_t *numbers = NULL;
	struct listing listing = {.target = target, .answer = answer, .visit = visit, .arg = arg};
	size_t count = 0;

	*ret_lost = 0;
	if (!answer)
		return &stall_enomem;
	struct stall_error *err = stall_target_descriptors(target, max, &numbers, &count);
	if (err)
		return err;
	stall_proc_root(target, listing.root, sizeof(listing.root));
	for (size_t at = 0; !err && at < count && !listing.stopped; at += PIECE)
		err = list_piece(&listing, numbers + at, count - at < PIECE ? count - at : PIECE);
	*ret_lost = listing.lost;
	return err;
}

struct one {
	struct stall_descriptor *descriptor;
	char *path;
	size_t size;
	bool found;
};

static bool take_one(void *arg, const struct stall_descriptor *descriptor)
{
	struct one *one = arg;

	*one->descriptor = *descriptor;
	snprintf(one->path, one->size, "%s", descriptor->path);
	one->descriptor->path = one->path;
	one->found = true;
	return false;
}

bool stall_descriptor_read(const struct stall_target *target, int fd,
			   struct stall_descriptor *descriptor, char *path, size_t size)
{
	_cleanup_free_ char *answer = malloc(sizeof(struct stall_read_descriptor) + PATH_MAX + 32);
	struct one one = {descriptor, path, size, false};
	struct listing listing = {.target = target,
				  .answer = answer,
				  .visit = take_one,
				  .arg = &one};
	int32_t number = fd;
	size_t done;

	if (!answer)
		return false;
	stall_proc_root(target, listing.root, sizeof(listing.root));
	stall_error_destroy(list_some(&listing, &number, 1, &done));
	return one.found;
}
