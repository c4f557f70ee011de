// SPDX-License-Identifier: Apache-2.0
// The shared memory of a PostgreSQL of any version, laid out in this process: backends and the locks
// that they hold and wait for. The tests read it like that of another process.
#ifndef STALL_POSTGRES_IMAGE_H
#define STALL_POSTGRES_IMAGE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/arena.h"
#include "introspect/postgres_layout.h"
#include "introspect/postgres_server.h"
#include "proc/target.h"
#include "snapshot/snapshot.h"

#define IMAGE_BACKENDS 8
#define IMAGE_SLOTS 12	     // entries and PGPROCs, some of them free
#define IMAGE_FIRST_PID 4000 // of slot 0
#define IMAGE_TEXT 256	     // track_activity_query_size
#define IMAGE_NAME 64
#define IMAGE_LOCK 152
#define IMAGE_NODE 64
#define IMAGE_LOCKS 4
#define IMAGE_NODES 16
#define IMAGE_SIZE (256 * 1024)
#define IMAGE_WALL_NS (UINT64_C(1700000000) * 1000000000) // now
#define IMAGE_US_2000 UINT64_C(946684800000000)

// The program's variables; those of all backends are the same ones here.
struct postgres_variables {
	int32_t pid, number, backends, query_size;
	uint64_t entry, proc, procs, port, query;
};

struct postgres_image {
	struct postgres_variables *variables; // in a page of their own
	uint8_t *shared;
	uint8_t *header, *procs, *entries, *texts, *names, *locks, *nodes;
	struct stall_postgres_layout layout;
	uint64_t symbols[STALL_PG_SYMBOLS];
	// The reader's side.
	struct stall_arena arena;
	struct stall_process process;
	struct stall_maps maps;
	struct stall_mapping mappings[2];
	struct stall_thread threads[IMAGE_BACKENDS];
	struct stall_snapshot snapshot;
	struct stall_postgres_backend backends[IMAGE_BACKENDS];
};

static inline void image_u32(uint8_t *at, uint32_t value)
{
	memcpy(at, &value, sizeof(value));
}

static inline void image_u64(uint8_t *at, uint64_t value)
{
	memcpy(at, &value, sizeof(value));
}

static inline uint8_t *image_entry(const struct postgres_image *image, int slot)
{
	return image->entries + slot * image->layout.entry_size;
}

static inline uint8_t *image_proc(const struct postgres_image *image, int slot)
{
	return image->procs + slot * image->layout.proc_size;
}

static inline uint8_t *image_lock(const struct postgres_image *image, int lock)
{
	return image->locks + lock * IMAGE_LOCK;
}

static inline uint8_t *image_node(const struct postgres_image *image, int node)
{
	return image->nodes + node * IMAGE_NODE;
}

static inline uint64_t image_time(unsigned int seconds_ago)
{
	return IMAGE_WALL_NS / 1000 - IMAGE_US_2000 - seconds_ago * UINT64_C(1000000);
}

// `state` is the version's own number.
static inline void image_backend(struct postgres_image *image, int slot, uint32_t type,
				 uint32_t state, const char *text)
{
	const struct stall_postgres_layout *layout = &image->layout;
	uint8_t *entry = image_entry(image, slot), *proc = image_proc(image, slot);
	uint16_t family = AF_UNIX;

	image_u32(entry + layout->change_count, 20);
	image_u32(entry + layout->pid, (uint32_t)(IMAGE_FIRST_PID + slot));
	if (layout->type != STALL_PG_NONE)
		image_u32(entry + layout->type, type);
	image_u64(entry + layout->proc_start, image_time(100));
	image_u64(entry + layout->xact_start, 0);
	image_u64(entry + layout->activity_start, image_time(3));
	image_u64(entry + layout->state_start, image_time(2));
	image_u32(entry + layout->database, 5);
	image_u32(entry + layout->user, 10);
	memcpy(entry + layout->client, &family, sizeof(family));
	image_u32(entry + layout->state, state);
	image_u64(entry + layout->activity, (uint64_t)(image->texts + slot * IMAGE_TEXT));
	image_u64(entry + layout->name, (uint64_t)(image->names + slot * IMAGE_NAME));
	snprintf((char *)image->texts + slot * IMAGE_TEXT, IMAGE_TEXT, "%s", text);
	snprintf((char *)image->names + slot * IMAGE_NAME, IMAGE_NAME, "app %d", slot);
	image_u32(proc + layout->proc_pid, (uint32_t)(IMAGE_FIRST_PID + slot));
	image_u32(proc + layout->proc_database, 5);
}

static inline void image_make_lists(struct postgres_image *image, int lock)
{
	uint8_t *at = image_lock(image, lock);

	for (int head = 24; head <= 40; head += 16) {
		image_u64(at + head, (uint64_t)(at + head));
		image_u64(at + head + 8, (uint64_t)(at + head));
	}
}

// Puts a node of a list in front of its head: at the end.
static inline void image_link(uint8_t *head, uint8_t *node)
{
	uint8_t *last;

	memcpy(&last, head, sizeof(last));
	image_u64(node, (uint64_t)last);
	image_u64(node + 8, (uint64_t)head);
	image_u64(last + 8, (uint64_t)node);
	image_u64(head, (uint64_t)node);
}

static inline void image_make_lock(struct postgres_image *image, int lock, uint8_t tag,
				   uint32_t first, uint32_t second)
{
	uint8_t *at = image_lock(image, lock);

	image_u32(at, first);
	image_u32(at + 4, second);
	at[14] = tag;
	at[15] = 1;
	image_make_lists(image, lock);
	image_u32(at + 104, 2); // nRequested
	image_u32(at + 148, 1); // nGranted
}

// The backend of the slot holds the lock in these modes; 0: it only waits for it.
static inline void image_hold(struct postgres_image *image, int node, int lock, int slot,
			      uint32_t modes)
{
	uint8_t *at = image_node(image, node);

	image_u64(at, (uint64_t)image_lock(image, lock));
	image_u64(at + 8, (uint64_t)image_proc(image, slot));
	image_u64(at + 16, (uint64_t)image_proc(image, slot)); // groupLeader
	image_u32(at + 24, modes);
	image_link(image_lock(image, lock) + 24, at + 32);
}

static inline void image_wait(struct postgres_image *image, int node, int lock, int slot,
			      uint32_t mode)
{
	const struct stall_postgres_layout *layout = &image->layout;
	uint8_t *proc = image_proc(image, slot);

	image_hold(image, node, lock, slot, 0);
	image_u64(proc + layout->wait_lock, (uint64_t)image_lock(image, lock));
	image_u64(proc + layout->wait_proc_lock, (uint64_t)image_node(image, node));
	image_u32(proc + layout->wait_mode, mode);
	image_u32(proc + layout->wait_event, 0x03000000);
	image_link(image_lock(image, lock) + 40, proc);
}

// The symbols that a version of PostgreSQL has. `exported`: MyBEEntry is one of them.
static inline void image_symbols(int version, bool exported, uint64_t symbols[STALL_PG_SYMBOLS])
{
	static const int since[] = {1000, 1100, 1200, 1300, 1400, 1500, 1600, 1700, 1800};

	for (int i = 0; i <= STALL_PG_SINCE_18 - STALL_PG_SINCE_10; i++)
		symbols[STALL_PG_SINCE_10 + i] = version >= since[i] ? 0x1000 : 0;
	for (int i = 0; i < STALL_PG_SINCE_10; i++)
		symbols[i] = 0x1000;
	if (version < 1700)
		symbols[STALL_PG_NUMBER] = 0;
	else
		symbols[STALL_PG_ID] = 0;
	if (!exported)
		symbols[STALL_PG_ENTRY] = 0;
}

static inline void *image_pages(size_t size)
{
	void *pages = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (pages == MAP_FAILED)
		abort();
	return pages;
}

static inline void image_place(struct postgres_image *image)
{
	uint8_t *at = image->shared + 512;

	// Something is in front of all of them, as there is in shared memory.
	image->header = at, at += 128;
	image->procs = at, at += IMAGE_SLOTS * image->layout.proc_size;
	image->entries = at, at += IMAGE_SLOTS * image->layout.entry_size;
	image->texts = at, at += IMAGE_SLOTS * IMAGE_TEXT;
	image->names = at, at += IMAGE_SLOTS * IMAGE_NAME;
	image->locks = at, at += IMAGE_LOCKS * IMAGE_LOCK;
	image->nodes = at;
	image_u64(image->header, (uint64_t)image->procs);
	image_u32(image->header + image->layout.proc_count, IMAGE_SLOTS);
}

static inline void image_set_variables(struct postgres_image *image, int version, int slot)
{
	struct postgres_variables *variables = image->variables;
	uint64_t *symbols = image->symbols;

	*variables = (struct postgres_variables){
		.pid = IMAGE_FIRST_PID + slot,
		.number = slot + (version < 1700),
		.backends = IMAGE_SLOTS,
		.query_size = IMAGE_TEXT,
		.entry = (uint64_t)image_entry(image, slot),
		.proc = (uint64_t)image_proc(image, slot),
		.procs = (uint64_t)image->header,
	};
	symbols[STALL_PG_PID] = (uint64_t)&variables->pid;
	symbols[STALL_PG_PROC] = (uint64_t)&variables->proc;
	symbols[STALL_PG_PROCS] = (uint64_t)&variables->procs;
	symbols[STALL_PG_BACKENDS] = (uint64_t)&variables->backends;
	symbols[STALL_PG_QUERY_SIZE] = (uint64_t)&variables->query_size;
	symbols[STALL_PG_QUERY] = (uint64_t)&variables->query;
	symbols[STALL_PG_PORT] = 0;
	symbols[STALL_PG_NUMBER] = symbols[STALL_PG_NUMBER] ? (uint64_t)&variables->number : 0;
	symbols[STALL_PG_ID] = symbols[STALL_PG_ID] ? (uint64_t)&variables->number : 0;
}

// The variables are those of the last backend. MyBEEntry cannot be exported here: all backends would
// have the same one.
static inline struct postgres_image *image_create(int version)
{
	struct postgres_image *image = calloc(1, sizeof(*image));

	image_symbols(version, false, image->symbols);
	if (!image || !stall_postgres_layout_choose(image->symbols, NULL, &image->layout))
		abort();
	image->variables = image_pages(4096);
	image->shared = image_pages(IMAGE_SIZE);
	image_place(image);
	image_set_variables(image, version, IMAGE_BACKENDS - 1);
	image->mappings[0] = (struct stall_mapping){
		.start = (uint64_t)image->variables,
		.end = (uint64_t)image->variables + 4096,
		.readable = true,
		.module = STALL_NO_MODULE,
	};
	image->mappings[1] = (struct stall_mapping){
		.start = (uint64_t)image->shared,
		.end = (uint64_t)image->shared + IMAGE_SIZE,
		.readable = true,
		.module = STALL_NO_MODULE,
	};
	if (image->mappings[0].start > image->mappings[1].start) {
		struct stall_mapping first = image->mappings[1];
		image->mappings[1] = image->mappings[0];
		image->mappings[0] = first;
	}
	image->maps.mappings = image->mappings;
	image->maps.mapping_count = 2;
	image->process.maps = &image->maps;
	if (stall_target_init(&image->process.target, getpid()) ||
	    stall_arena_init(&image->arena, 16 << 20))
		abort();
	for (int i = 0; i < IMAGE_BACKENDS; i++) {
		image->threads[i].tid = 1000 + i; // outside of the server's pid namespace
		image->threads[i].ns_tid = IMAGE_FIRST_PID + i;
		image->backends[i] = (struct stall_postgres_backend){
			.pid = IMAGE_FIRST_PID + i,
			.thread = (uint32_t)i,
		};
	}
	image->snapshot = (struct stall_snapshot){
		.arena = &image->arena,
		.wall_ns = IMAGE_WALL_NS,
		.processes = &image->process,
		.process_count = 1,
		.threads = image->threads,
		.thread_count = IMAGE_BACKENDS,
	};
	return image;
}

static inline void image_destroy(struct postgres_image *image)
{
	munmap(image->variables, 4096);
	munmap(image->shared, IMAGE_SIZE);
	stall_target_deinit(&image->process.target);
	stall_arena_deinit(&image->arena);
	free(image);
}

#endif
