// SPDX-License-Identifier: Apache-2.0
// The input is what a worker gets of a target: what a job asks for, the threads' registers and stacks,
// and the memory that the probe reads for it. The files are sound: fuzz_elf.c and fuzz_cfi.c damage them.
#include "unwind/worker_child.c" // NOLINT: it ends its process otherwise

#include <pthread.h>
#include <sys/socket.h>

#include "base/cleanup.h"
#include "worker_image.h"

#define QUERIES STALL_PROTOCOL_PLACES

static struct worker_image image;
static struct stall_worker_state state;
static const struct stall_search_dirs no_dirs;
static uint8_t region[IMAGE_REGION];

// The probe's side: answers as it does.
static void *answer(void *arg)
{
	const int socket = *(const int *)arg;
	struct stall_protocol_message question;

	while (recv(socket, &question, sizeof(question), 0) == (ssize_t)sizeof(question)) {
		struct stall_protocol_message said = {.type = question.type};
		uint8_t page[STALL_PROTOCOL_PAGE];
		struct iovec parts[2] = {{&said, sizeof(said)}, {page, sizeof(page)}};
		bool is_read = question.type == STALL_PROTOCOL_READ;
		int fd = -1;

		if (is_read)
			said.size =
				worker_image_read(&image, 0, question.address, page, sizeof(page));
		else
			fd = image.modules[question.module % IMAGE_PROCESSES].fd;
		must(stall_send_descriptor(socket, parts, is_read ? 2 : 1, fd, 0) > 0);
	}
	return NULL;
}

static void prepare(void)
{
	static int sockets[2];
	pthread_t probe;

	worker_image_init(&image);
	must(!socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets));
	must(!pthread_create(&probe, NULL, answer, &sockets[1]));
	state.stacks_base = image.arena.base;
	state.region = region;
	state.socket = sockets[0];
	state.pages = calloc(STALL_LIVE_PAGES, sizeof(*state.pages));
	must(state.pages);
	state.dirs = state.packs = &no_dirs;
}

static void fill_queries(struct stall_job_layout *layout, enum stall_protocol_kind kind,
			 const uint8_t *data, size_t size)
{
	struct stall_protocol_query queries[QUERIES] = {};
	uint64_t name = stall_job_string(layout, kind == STALL_PROTOCOL_FIND_DATA
							 ? "program_invocation_name"
							 : "pthread_mutex_*lock");

	for (size_t i = 0; i < QUERIES; i++) {
		queries[i].name = name;
		if (kind == STALL_PROTOCOL_NAME_DATA && size >= (i + 1) * 8)
			memcpy(&queries[i].address, data + i * 8, 8);
	}
	must(!stall_job_fill_queries(layout, queries, QUERIES));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	// Most of it is there for stacks.
	enum stall_protocol_kind kind = size && data[0] < 24 ? data[0] % 4 : STALL_PROTOCOL_UNWIND;
	struct stall_unwound unwound;

	if (!state.pages)
		prepare();
	memset(region, 0, sizeof(region));
	_cleanup_(stall_job_deinit) struct stall_job_layout layout = {
		.region = region,
		.size = sizeof(region),
		.snapshot = &image.snapshot,
		.only = STALL_ALL_PROCESSES,
	};
	image.memory = data;
	image.memory_size = size;
	data += size > 0;
	size -= size > 0;
	worker_image_threads(&image, &data, &size);
	must(!stall_job_fill(&layout, kind, NULL) && !stall_job_fill_threads(&layout));
	fill_queries(&layout, kind, data, size);
	must(!stall_job_finish(&layout, UINT64_MAX));
	do_job(&state);
	must(!stall_result_read(&layout, &unwound));
	worker_image_check(&image.snapshot, &unwound);
	stall_unwound_deinit(&unwound);
	return 0;
}
