// SPDX-License-Identifier: Apache-2.0
// The input is what a worker says that was taken over: how many messages, these, and then changes to the
// region that it shares with the probe: part, place, length, bytes. The probe's side is compiled here,
// so that its socket can be one whose other end says that.
#include "unwind/worker.c" // NOLINT: see above

#include "worker_image.h"

#define MESSAGES 32
#define QUERIES (2 * STALL_PROTOCOL_PLACES)

static struct worker_image image;
static uint8_t region[IMAGE_REGION];

static uint64_t part_of(const struct stall_protocol_job *job, uint8_t choice)
{
	const uint64_t parts[] = {0,	       job->frames,  job->stacks,  job->indexes,
				  job->infos,  job->strings, job->queries, job->processes,
				  job->modules};

	return parts[choice % (sizeof(parts) / sizeof(parts[0]))];
}

static void change_region(const struct stall_protocol_job *job, const uint8_t *data, size_t size)
{
	while (size >= 4) {
		size_t at = part_of(job, data[0]) + (data[1] | (size_t)data[2] << 8);
		size_t length = data[3] < size - 4 ? data[3] : size - 4;

		memcpy(region + at, data + 4, length);
		data += 4 + length;
		size -= 4 + length;
	}
}

// Returns what of the input is left. The answers are read by nobody.
static size_t say(int socket, const uint8_t *data, size_t size)
{
	size_t count = size ? data[0] % MESSAGES : 0, at = size ? 1 : 0;

	for (size_t i = 0; i < count && at < size; i++) {
		size_t length = sizeof(struct stall_protocol_message) + (data[at] == 255);

		length = length < size - at ? length : size - at;
		must(send(socket, data + at, length, MSG_DONTWAIT) == (ssize_t)length);
		at += length;
	}
	must(shutdown(socket, SHUT_WR) == 0);
	return at;
}

static void read_answers(const struct stall_job_layout *layout)
{
	struct stall_protocol_query entries[QUERIES];
	struct queries queries = {entries, QUERIES, NULL};
	struct stall_function_place places[QUERIES];
	struct stall_job_layout of_one = *layout;
	struct stall_unwound unwound;
	size_t size, count = 0;
	char *strings;

	must(!stall_result_read(layout, &unwound));
	worker_image_check(&image.snapshot, &unwound);
	stall_unwound_deinit(&unwound);
	must(!stall_result_strings(layout, &strings, &size));
	read_queries(layout, &queries);
	for (size_t i = 0; i < QUERIES; i++) {
		const char *name = stall_result_string(strings, size, entries[i].found);

		must(!name || strlen(name) <= STALL_MAX_LINKAGE);
	}
	free(strings);
	of_one.only = 1;
	must(!stall_function_places_read(&of_one, places, &count) && count <= QUERIES);
	for (size_t i = 0; i < count; i++)
		must(places[i].module < image.maps[1].module_count &&
		     places[i].skipped <= places[i].file_offset);
	stall_function_places_deinit(places, count);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const struct stall_protocol_query queries[QUERIES];
	struct stall_worker worker = {.region = region, .files = -1};
	int sockets[2];

	if (!image.arena.base)
		worker_image_init(&image);
	memset(region, 0, sizeof(region));
	_cleanup_(stall_job_deinit) struct stall_job_layout layout = {
		.region = region,
		.size = sizeof(region),
		.snapshot = &image.snapshot,
		.only = size && data[size - 1] & 1 ? 1 : STALL_ALL_PROCESSES,
	};
	must(!socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets));
	image.memory = data;
	image.memory_size = size;
	worker.socket = sockets[0];
	must(!stall_job_fill(&layout, STALL_PROTOCOL_UNWIND, NULL) &&
	     !stall_job_fill_threads(&layout) &&
	     !stall_job_fill_queries(&layout, queries, QUERIES) &&
	     !stall_job_finish(&layout, UINT64_MAX - GRACE_NS));
	size_t said = say(sockets[1], data, size);
	change_region(&layout.job, data + said, size - said);
	if (serve(&worker, &layout) != OUTCOME_MESSAGE)
		accuse(&worker, &layout, false);
	must(worker.bad_files.count <= STALL_MAX_BAD_FILES);
	read_answers(&layout);
	close(sockets[0]);
	close(sockets[1]);
	return 0;
}
