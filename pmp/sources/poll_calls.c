// SPDX-License-Identifier: Apache-2.0
#include "sources/poll_calls.h"
#include "proc/read_child.h"

#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>

#define MAX_IOVECS 8 // that are added up, as the wait programs do
#define PAGE 4096

// include/uapi/linux/futex.h, where a system's headers may be older.
struct waitv {
	uint64_t value, address;
	uint32_t flags, reserved;
};

static bool is_transfer(uint8_t how)
{
	return how >= STALL_CALL_TRANSFER && how <= STALL_CALL_VECTOR_AT;
}

static bool is_positioned(uint8_t how)
{
	return how == STALL_CALL_TRANSFER_AT || how == STALL_CALL_VECTOR_AT;
}

static uint64_t vector_size(const struct stall_target *target, uint64_t address, uint64_t count)
{
	struct iovec vector[MAX_IOVECS];
	uint64_t size = 0;

	if (count > MAX_IOVECS)
		count = MAX_IOVECS;
	if (stall_read_child_range(target, address, vector, count * sizeof(vector[0])) !=
	    count * sizeof(vector[0]))
		return 0;
	for (uint64_t i = 0; i < count; i++)
		size += vector[i].iov_len;
	return size;
}

// How many bytes, from where.
static void read_extent(const struct stall_target *target, uint8_t how,
			const struct stall_proc_syscall *call, uint64_t *offset, uint64_t *size)
{
	const uint64_t *args = call->args;

	*offset = is_positioned(how) ? args[3] : 0;
	*size = 0;
	switch (how) {
	case STALL_CALL_RANGE:
		*offset = args[1];
		*size = args[2];
		break;
	case STALL_CALL_FALLOCATE:
		*offset = args[2];
		*size = args[3];
		break;
	case STALL_CALL_TRUNCATE:
	case STALL_CALL_MAPPING:
		*size = args[1];
		break;
	case STALL_CALL_TRANSFER:
	case STALL_CALL_TRANSFER_AT:
		*size = args[2];
		break;
	case STALL_CALL_VECTOR:
	case STALL_CALL_VECTOR_AT:
		*size = vector_size(target, args[1], args[2]);
		break;
	}
}

enum stall_wait_kind stall_poll_kind(const struct stall_call *calls, uint32_t kinds,
				     const struct stall_proc_syscall *call,
				     const struct stall_poll_file *file, uint64_t size)
{
	const struct stall_call known = calls[call->number];
	enum stall_wait_kind kind = known.kind;

	if (is_transfer(known.how) && (!file || (file->is_known && !S_ISREG(file->mode))))
		return STALL_WAIT_KINDS;
	if (kind == STALL_WAIT_WRITE && is_positioned(known.how) && file && file->is_known &&
	    call->args[3] + size > file->size && (kinds >> STALL_WAIT_EXTEND & 1))
		kind = STALL_WAIT_EXTEND;
	return kinds >> kind & 1 ? kind : STALL_WAIT_KINDS;
}

static uint64_t hash_path(const char *path)
{
	uint64_t hash = UINT64_C(0xcbf29ce484222325); // FNV-1a

	for (; *path; path++)
		hash = (hash ^ (unsigned char)*path) * UINT64_C(0x100000001b3);
	return hash;
}

// A string of the target, which may end right before a page that is not there.
static bool read_path(const struct stall_target *target, uint64_t address, char ret[STALL_PATH])
{
	size_t used = 0;

	memset(ret, 0, STALL_PATH);
	while (used < STALL_PATH - 1 && !memchr(ret, '\0', used)) {
		size_t size = PAGE - (address + used) % PAGE;
		if (size > STALL_PATH - 1 - used)
			size = STALL_PATH - 1 - used;
		size_t got = stall_read_child_range(target, address + used, ret + used, size);
		used += got;
		if (got < size)
			break;
	}
	memset(ret + strlen(ret), 0, STALL_PATH - strlen(ret));
	return ret[0];
}

static bool describe_futex(const struct stall_target *target, uint8_t how,
			   const struct stall_proc_syscall *call, struct stall_poll_call *ret)
{
	struct waitv first;

	ret->operation = call->number;
	switch (how) {
	case STALL_CALL_FUTEX:
		ret->key.id = call->args[0];
		ret->operation = call->args[1];
		ret->value = (uint32_t)call->args[2];
		return true;
	case STALL_CALL_FUTEX_WAIT:
		ret->key.id = call->args[0];
		ret->value = call->args[1];
		return true;
	default:
		if (stall_read_child_range(target, call->args[0], &first, sizeof(first)) !=
		    sizeof(first))
			return false;
		ret->key.id = first.address;
		ret->value = first.value;
		return true;
	}
}

static bool describe_file(const struct stall_target *target, const struct stall_call *calls,
			  uint32_t kinds, const struct stall_proc_syscall *call,
			  struct stall_poll_call *ret)
{
	struct stall_poll_file file;
	int fd = (int)call->args[0];

	if (!stall_poll_file_find(target, fd, &file))
		return false;
	read_extent(target, calls[call->number].how, call, &ret->value, &ret->size);
	ret->key.kind = stall_poll_kind(calls, kinds, call, &file, ret->size);
	if (ret->key.kind == STALL_WAIT_KINDS)
		return false;
	memcpy(ret->path, file.path, sizeof(ret->path));
	if (file.is_known) {
		ret->key.id = file.ino;
		ret->key.id2 = file.dev << 32; // the generation of the inode is not known
		ret->fd = fd;
		ret->mode = file.mode;
	} else {
		ret->key.id = hash_path(file.path);
	}
	return true;
}

bool stall_poll_call_describe(const struct stall_target *target, const struct stall_call *calls,
			      uint32_t kinds, const struct stall_proc_syscall *call,
			      struct stall_poll_call *ret)
{
	const struct stall_call known = calls[call->number];

	*ret = (struct stall_poll_call){
		.key = {.tgid = target->pid, .kind = known.kind},
		.operation = call->number,
		.fd = -1,
	};
	if (known.kind == STALL_WAIT_FUTEX)
		return describe_futex(target, known.how, call, ret);
	if (known.how < STALL_CALL_MAPPING)
		return describe_file(target, calls, kinds, call, ret);
	if (stall_poll_kind(calls, kinds, call, NULL, 0) == STALL_WAIT_KINDS)
		return false;
	switch (known.how) {
	case STALL_CALL_MAPPING:
		ret->key.id = call->args[0];
		ret->size = call->args[1];
		return true;
	case STALL_CALL_PATH:
	case STALL_CALL_PATH_AT:
		if (!read_path(target, call->args[known.how == STALL_CALL_PATH_AT], ret->path))
			return false;
		ret->key.id = hash_path(ret->path);
		return true;
	}
	return true;
}
