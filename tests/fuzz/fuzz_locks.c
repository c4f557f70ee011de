// SPDX-License-Identifier: Apache-2.0
// The input is a layout, a zero byte, and what a server's memory has: records of a place (in 2 bytes, by
// 8), a length and bytes. The words before it are global pointers and what threads sleep on.
#include <string.h>

#include "fuzz.h"
#include "lock/lock.h"
#include "lock/metadata_locks.h"
#include "lock/row_locks.h"
#include "lock/server_memory.h"
#include "lock/sux_locks.h"
#include "lock/sync_cells.h"
#include "lock/thd.h"
#include "lock/thread_numbers.h"

#define BASE UINT64_C(0x10000)
#define IMAGE (512 * 1024)
#define THREADS 5
#define PTHREAD(i) (UINT64_C(0x700000000000) + (uint64_t)(i)*0x1000)
// At the start of the memory, before what the records change: waiters' words and the globals.
#define WAITERS THREADS
#define TEXT 8192

static uint8_t memory[IMAGE];
static struct stall_thread threads[THREADS];
static struct stall_process process;
static struct stall_memory_lock found[THREADS];

static size_t read_memory(void *arg, uint32_t of, uint64_t address, void *buf, size_t size)
{
	uint64_t at = address - BASE;

	if (at >= IMAGE)
		return 0;
	size = size < IMAGE - at ? size : IMAGE - at;
	memcpy(buf, memory + at, size);
	return size;
}

static struct stall_snapshot snapshot = {
	.memory = {.read = read_memory},
	.processes = &process,
	.process_count = 1,
	.threads = threads,
	.thread_count = THREADS,
};

static void fill_memory(const uint8_t *data, size_t size)
{
	memset(memory, 0, sizeof(memory));
	while (size >= 3) {
		size_t at = (data[0] | (size_t)data[1] << 8) * 8;
		size_t length = data[2] < size - 3 ? data[2] : size - 3;

		length = length < IMAGE - at ? length : IMAGE - at;
		memcpy(memory + at, data + 3, length);
		data += 3 + length;
		size -= 3 + length;
	}
}

static uint64_t head(int index)
{
	uint64_t word;

	memcpy(&word, memory + 8 * index, sizeof(word));
	return word;
}

static void check(void)
{
	for (int i = 0; i < THREADS; i++) {
		const struct stall_memory_lock *lock = &found[i];

		must(!lock->found || lock->owner == STALL_NO_THREAD || lock->owner < THREADS);
		must(strnlen(lock->name, sizeof(lock->name)) < sizeof(lock->name));
		must(strnlen(lock->created, sizeof(lock->created)) < sizeof(lock->created));
	}
}

static void find_latches(const struct stall_server_memory *server)
{
	static struct stall_frame frames[] = {
		{.symbol = "syscall"},
		{.symbol = "srw_mutex_impl<true>::wait_and_lock()"},
		{.symbol = "buf_page_get_gen(page_id_t)"},
	};
	static uint32_t order[] = {0, 1, 2};
	struct stall_stack stacks[THREADS] = {[1] = {.frames = order, .count = 3}};
	const struct stall_unwound unwound = {.frames = frames, .stacks = stacks};
	struct stall_lock lock = {.address = head(0), .futex = head(0)};
	uint32_t thread_lock[THREADS] = {UINT32_MAX, 0, UINT32_MAX, UINT32_MAX, UINT32_MAX};
	const struct stall_locks locks = {.locks = &lock, .count = 1, .thread_lock = thread_lock};
	struct stall_futex futex = {.address = head(0), .readable = true};

	memcpy(futex.bytes, memory + 1024, sizeof(futex.bytes));
	snapshot.futexes = &futex;
	snapshot.futex_count = 1;
	stall_sux_locks_find(server, &unwound, &locks);
	snapshot.futexes = NULL;
	snapshot.futex_count = 0;
}

static void find(const struct stall_layout *layout)
{
	struct stall_server_global globals[STALL_SERVER_GLOBALS];
	struct stall_memory_waiter waiters[WAITERS];
	struct stall_thread_numbers numbers;
	struct stall_thds thds;
	struct stall_server_memory server = {
		.snapshot = &snapshot,
		.layout = layout,
		.globals = globals,
		.thds = &thds,
		.numbers = &numbers,
		.waiters = waiters,
		.waiter_count = WAITERS,
		.found = found,
	};

	memset(found, 0, sizeof(found));
	for (uint32_t i = 0; i < THREADS; i++) {
		threads[i] = (struct stall_thread){.tid = 1000 + (pid_t)i,
						   .ns_tid = 100 + (pid_t)i,
						   .fs_base = PTHREAD(i)};
		found[i].owner = STALL_NO_THREAD;
		waiters[i] = (struct stall_memory_waiter){i, head((int)i) & ~UINT64_C(7)};
	}
	for (int i = 0; i < STALL_SERVER_GLOBALS; i++)
		globals[i] =
			(struct stall_server_global){head(WAITERS + i), head(WAITERS + i) ? 8 : 0};
	must(!stall_thds_init(&thds, &snapshot, 0, layout));
	must(!stall_thread_numbers_init(&numbers, &snapshot, 0));
	stall_error_destroy(stall_metadata_locks_find(&server));
	stall_error_destroy(stall_row_locks_find(&server));
	stall_error_destroy(stall_sync_cells_find(&server));
	find_latches(&server);
	check();
	stall_thds_deinit(&thds);
	stall_thread_numbers_deinit(&numbers);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct stall_layout layout = {};
	char text[TEXT];
	size_t length = strnlen((const char *)data, size < TEXT - 1 ? size : TEXT - 1);

	memcpy(text, data, length);
	text[length] = '\0';
	struct stall_error *err = stall_layout_add(&layout, text);
	if (!err) {
		data += length < size ? length + 1 : length;
		size -= length < size ? length + 1 : length;
		fill_memory(data, size);
		find(&layout);
	}
	stall_error_destroy(err);
	stall_layout_deinit(&layout);
	return 0;
}
