// SPDX-License-Identifier: Apache-2.0
#include "ebpf/task_iterator.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "ebpf/bpf_error.h"

#define CHUNK                                                                                      \
	(64 * 1024) // the kernel hands out 32 KiB a read (PAGE_SIZE << 3, kernel/bpf/bpf_iter.c)

void stall_bpf_records_deinit(struct stall_bpf_records *records)
{
	free(records->data);
	*records = (struct stall_bpf_records){};
}

static struct bpf_link *attach(struct bpf_program *program, union bpf_iter_link_info info, bool all)
{
	LIBBPF_OPTS(bpf_iter_attach_opts, opts, .link_info = &info, .link_info_len = sizeof(info));
	struct stall_bpf_log log;

	stall_bpf_log_begin(&log);
	struct bpf_link *link = bpf_program__attach_iter(program, all ? NULL : &opts);
	int errnum = errno;
	stall_bpf_log_end(&log);
	errno = errnum;
	return link;
}

struct bpf_link *stall_task_iterator_attach(struct bpf_program *program, pid_t pid)
{
	return attach(program, (union bpf_iter_link_info){.task.pid = pid}, !pid);
}

struct bpf_link *stall_task_iterator_attach_thread(struct bpf_program *program, pid_t tid)
{
	return attach(program, (union bpf_iter_link_info){.task.tid = tid}, false);
}

static struct stall_error *make_room(struct stall_bpf_records *records)
{
	return stall_array_reserve(&records->data, records->size, CHUNK, &records->capacity)
		       ? NULL
		       : &stall_enomem;
}

struct stall_error *stall_task_iterator_run(struct bpf_link *link, size_t max_bytes,
					    struct stall_bpf_records *records)
{
	records->size = 0;
	records->cut = false;
	return stall_task_iterator_add(link, max_bytes, records);
}

struct stall_error *stall_task_iterator_add(struct bpf_link *link, size_t max_bytes,
					    struct stall_bpf_records *records)
{
	_cleanup_close_ int fd = bpf_iter_create(bpf_link__fd(link));

	if (fd < 0)
		return stall_error_os(-fd, "cannot start the BPF task iterator");
	for (;;) {
		struct stall_error *err = make_room(records);
		if (err)
			return err;
		ssize_t n =
			read(fd, records->data + records->size, records->capacity - records->size);
		if (n == 0)
			return NULL;
		// EAGAIN: a million tasks in a row were not ours (MAX_ITER_OBJECTS).
		if (n < 0 && errno != EINTR && errno != EAGAIN)
			return stall_error_os(errno, "cannot read the BPF task iterator");
		if (n > 0)
			records->size += n;
		if (records->size > max_bytes) {
			records->cut = true;
			return NULL;
		}
	}
}

struct stall_error *stall_task_iterator_walk(struct bpf_program *program, pid_t pid)
{
	_cleanup_(stall_bpf_records_deinit) struct stall_bpf_records nothing = {};
	struct bpf_link *link = stall_task_iterator_attach(program, pid);

	if (!link)
		return stall_error_os(errno, "cannot attach the BPF task iterator");
	struct stall_error *err = stall_task_iterator_run(link, SIZE_MAX, &nothing);
	bpf_link__destroy(link);
	return err;
}
