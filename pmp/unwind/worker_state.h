// SPDX-License-Identifier: Apache-2.0
// The worker's cache between jobs, its current job, and its requests to the probe.
#ifndef STALL_WORKER_STATE_H
#define STALL_WORKER_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "unwind/binary.h"
#include "unwind/worker_protocol.h"

#define STALL_LIVE_PAGES 256 // kept during a job; a power of two

struct stall_live_page {
	uint64_t address; // of the page; UINT64_MAX: free
	uint32_t process;
	uint32_t size; // how much of it could be read
	uint8_t data[STALL_PROTOCOL_PAGE];
};

// A file that was opened once, under its key; kept between jobs while it is in use.
struct stall_worker_file {
	struct stall_protocol_key key;
	struct stall_binary *binary;
	uint64_t job; // the last one that used it
};

// A module of the current job.
struct stall_worker_module {
	bool tried;
	struct stall_binary *binary; // NULL: see `error`
	uint64_t bias;
};

struct stall_worker_state {
	const uint8_t *stacks_base; // of the arena with the copied stacks
	uint8_t *region;	    // shared with the probe: the job and its result
	int socket;		    // to the probe
	const struct stall_search_dirs *dirs, *packs;
	uint64_t jobs;
	struct stall_worker_file *files;
	size_t file_count, file_capacity;
	struct stall_live_page *pages;

	// The current job.
	struct stall_protocol_job *job;
	struct stall_protocol_process *processes;
	struct stall_protocol_mapping *mappings;
	struct stall_protocol_module *modules;
	struct stall_protocol_thread *threads;
	struct stall_protocol_query *queries;
	struct stall_protocol_frame *frames;
	struct stall_protocol_stack *stacks;
	uint32_t *indexes;
	struct stall_protocol_module_info *infos;
	char *strings;
	struct stall_worker_module *states;
	size_t pages_read;
	struct stall_site_table *sites;
};

bool stall_worker_late(const struct stall_worker_state *state);
// A string of the result + 1; 0 where there is no room.
uint32_t stall_worker_string(struct stall_worker_state *state, const char *text);

bool stall_worker_send(struct stall_worker_state *state,
		       const struct stall_protocol_message *message);
// `page` (may be NULL) receives what follows the message.
bool stall_worker_receive(struct stall_worker_state *state, struct stall_protocol_message *message,
			  uint8_t *page, int *ret_fd);
// Sends a request to the probe. *ret_fd is -1 unless the answer has a file.
bool stall_worker_ask(struct stall_worker_state *state,
		      const struct stall_protocol_message *question,
		      struct stall_protocol_message *ret, uint8_t *page, int *ret_fd);

// The file of a module, opened now or earlier. NULL: it cannot be read; its info has the reason.
struct stall_binary *stall_worker_binary(struct stall_worker_state *state, uint32_t module);
// Forgets files that no recent job used.
void stall_worker_trim_files(struct stall_worker_state *state);

#endif
