// SPDX-License-Identifier: Apache-2.0
#include "ebpf/async_loader.h"

#include <bpf/bpf.h>
#include <bpf/btf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "ebpf/kernel_types.h"
#include "ebpf/waits_state.h"

// The prototype of a tracepoint, as the kernel's types have it: void *, then its arguments.
static const struct btf_type *find_tracepoint(const struct btf *btf, const char *name)
{
	int id = btf__find_by_name_kind(btf, name, BTF_KIND_TYPEDEF);
	const struct btf_type *type = id > 0 ? btf__type_by_id(btf, id) : NULL;

	type = type ? btf__type_by_id(btf, type->type) : NULL;
	type = type && btf_is_ptr(type) ? btf__type_by_id(btf, type->type) : NULL;
	return type && btf_is_func_proto(type) ? type : NULL;
}

static const struct btf_type *parameter(const struct btf *btf, const struct btf_type *function,
					unsigned int index)
{
	if (index >= btf_vlen(function))
		return NULL;
	int id = btf__resolve_type(btf, btf_params(function)[index].type);
	return id > 0 ? btf__type_by_id(btf, id) : NULL;
}

static bool points_to(const struct btf *btf, const struct btf_type *pointer, const char *name)
{
	if (!pointer || !btf_is_ptr(pointer))
		return false;
	int id = btf__resolve_type(btf, pointer->type);
	const struct btf_type *type = id > 0 ? btf__type_by_id(btf, id) : NULL;
	return type && btf_is_struct(type) &&
	       strcmp(btf__name_by_offset(btf, type->name_off), name) == 0;
}

static bool has_types(const struct btf *btf)
{
	static const char *const members[][2] = {
		{"io_kiocb", "opcode"},	  {"io_kiocb", "flags"}, {"io_kiocb", "cqe"},
		{"io_rw", "kiocb"},	  {"io_rw", "len"},	 {"io_sync", "off"},
		{"io_sync", "len"},	  {"io_sync", "flags"},	 {"io_unlink", "filename"},
		{"io_unlink", "dfd"},	  {"filename", "uptr"},	 {"io_rename", "oldpath"},
		{"io_rename", "old_dfd"}, {"io_cqe", "res"},
	};

	for (size_t i = 0; i < sizeof(members) / sizeof(members[0]); i++) {
		if (!stall_kernel_member(btf, members[i][0], members[i][1]))
			return false;
	}
	return true;
}

// NULL where this kernel has none that the program can read.
static const char *find_submit(const struct btf *btf)
{
	static const struct {
		const char *name, *type;
	} points[] = {
		{STALL_URING_SUBMIT, "btf_trace_" STALL_URING_SUBMIT},
		{STALL_URING_SUBMIT_BEFORE, "btf_trace_" STALL_URING_SUBMIT_BEFORE},
	};

	for (size_t i = 0; i < sizeof(points) / sizeof(points[0]); i++) {
		const struct btf_type *submit = find_tracepoint(btf, points[i].type);

		if (submit && points_to(btf, parameter(btf, submit, 1), "io_kiocb"))
			return points[i].name;
	}
	return NULL;
}

static const char *find_why_not(const struct btf *btf, const char **ret_submit,
				uint32_t *ret_result_argument)
{
	const struct btf_type *complete = find_tracepoint(btf, "btf_trace_io_uring_complete");
	const struct btf_type *entry = complete ? parameter(btf, complete, 3) : NULL;

	if (!complete)
		return "no io_uring in this kernel";
	*ret_submit = find_submit(btf);
	if (!*ret_submit || !has_types(btf))
		return "the tracepoint io_uring_submit_req is not there or of another form in this "
		       "kernel: requests of io_uring are not seen";
	const struct btf_type *request = parameter(btf, complete, 2);
	if (!request || !btf_is_ptr(request))
		return "the end of io_uring's requests does not name them in this kernel: they are "
		       "not seen";
	*ret_result_argument = points_to(btf, entry, "io_uring_cqe") ? 0 : 3;
	return NULL;
}

const char *stall_async_prepare(struct waits *skeleton, const struct btf *btf,
				const char **ret_submit)
{
	uint32_t result_argument = 0;
	const char *why_not = find_why_not(btf, ret_submit, &result_argument);

	skeleton->rodata->uring_result_argument = result_argument;
	bpf_program__set_autoload(skeleton->progs.stall_uring_submit, !why_not);
	bpf_program__set_autoload(skeleton->progs.stall_uring_complete, !why_not);
	return why_not;
}

struct stall_error *stall_async_attach(struct waits *skeleton, const char *submit)
{
	skeleton->links.stall_uring_complete =
		bpf_program__attach(skeleton->progs.stall_uring_complete);
	skeleton->links.stall_uring_submit =
		bpf_program__attach_raw_tracepoint(skeleton->progs.stall_uring_submit, submit);
	if (skeleton->links.stall_uring_complete && skeleton->links.stall_uring_submit)
		return NULL;
	return stall_error_os(errno, "cannot attach to the tracepoints of io_uring");
}

void stall_async_detach(struct waits *skeleton)
{
	bpf_link__destroy(skeleton->links.stall_uring_submit);
	bpf_link__destroy(skeleton->links.stall_uring_complete);
	skeleton->links.stall_uring_submit = skeleton->links.stall_uring_complete = NULL;
}

// As struct async_id and the start of struct async_call in programs/waits/async.bpf.h.
struct async_id {
	uint64_t address;
	uint32_t tgid, pad;
};

void stall_async_forget(struct waits *skeleton, uint32_t tgid)
{
	int fd = bpf_map__fd(skeleton->maps.async_calls);
	size_t size = bpf_map__value_size(skeleton->maps.async_calls);
	_cleanup_free_ struct stall_wait_key *call = malloc(size);
	struct async_id id, next;
	bool more = call && bpf_map_get_next_key(fd, NULL, &next) == 0;

	// Get the next key first: from a deleted key the walk starts again, which a busy process
	// can cause again and again.
	for (size_t left = 4UL * bpf_map__max_entries(skeleton->maps.async_calls); more && left;
	     left--) {
		id = next;
		more = bpf_map_get_next_key(fd, &id, &next) == 0;
		if (bpf_map_lookup_elem(fd, &id, call) == 0 && call->tgid == tgid)
			bpf_map_delete_elem(fd, &id);
	}
}
