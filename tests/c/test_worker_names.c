// SPDX-License-Identifier: Apache-2.0
// What the worker names of a live process, which here is this one: data and functions.
#include <unistd.h>

#include "check.h"
#include "target_process.h"
#include "unwind/worker.h"

static struct stall_arena arena;

static struct stall_worker *make_worker(void)
{
	struct stall_worker_options options = {.deadline_ms = 10000};
	struct stall_worker *worker = NULL;

	CHECK_OK(stall_worker_create(&arena, &options, &worker));
	return worker;
}

static int global_object[10];

// Two functions, of which one is known by its clone alone. `asm` gives the names that the compiler
// would make.
__attribute__((noipa)) int lonely_function(void);
int lonely_function(void)
{
	return global_object[0];
}
__attribute__((noipa)) static int cloned(void) __asm__("cloned_function.part.0");
static int cloned(void)
{
	return global_object[1] + 1;
}
__attribute__((noipa)) static int cold(void) __asm__("cloned_function.cold");
static int cold(void)
{
	return global_object[2] + 2;
}

// Names of data by address, and addresses by name, of this very process.
static void test_data(void)
{
	struct stall_worker *worker = make_worker();
	struct stall_snapshot *snapshot = NULL;
	pid_t pid = getpid();
	uint64_t address = (uint64_t)(uintptr_t)global_object, found, size;

	CHECK_OK(stall_snapshot_create(&arena, &pid, 1, NULL, &snapshot));
	struct stall_data_query queries[] = {{.address = address + 8},
					     {.address = (uint64_t)(uintptr_t)&pid},
					     {.address = 0},
					     {.address = UINT64_MAX}};
	CHECK_OK(stall_worker_name_data(worker, snapshot, queries, 4));
	CHECK_STRING(queries[0].name, "global_object");
	CHECK_INT(queries[0].offset, 8);
	for (size_t i = 1; i < 4; i++)
		CHECK(!queries[i].name);
	free(queries[0].name);
	CHECK_OK(stall_worker_find_data(worker, snapshot, 0, "global_object", &found, &size));
	CHECK_INT(found, address);
	CHECK_INT(size, sizeof(global_object));
	CHECK_OK(stall_worker_find_data(worker, snapshot, 0, "no such thing", &found, &size));
	CHECK_INT(found, 0);
	// The last one is in libc's file, which is not the main program.
	static const char *const names[] = {"no such thing", "global_object",
					    "__check_rhosts_file"};
	uint64_t addresses[3] = {1, 1, 1};
	CHECK_OK(stall_worker_find_data(worker, snapshot, 0, names[2], &found, &size));
	CHECK(found);
	CHECK_OK(stall_worker_find_main_data(worker, snapshot, 0, names, 3, addresses));
	CHECK_INT(addresses[0], 0);
	CHECK_INT(addresses[1], address);
	CHECK_INT(addresses[2], 0);
	stall_snapshot_destroy(snapshot);
	stall_worker_destroy(worker);
}

// The bytes at the place that the worker reports are those of the function.
static bool is_at(const struct stall_snapshot *snapshot, const struct stall_function_place *place,
		  const void *function)
{
	const struct stall_module *module = &snapshot->processes[0].maps->modules[place->module];
	uint8_t bytes[16];

	// Where the compiler has to begin functions with ENDBR64, the place is behind it.
	size_t skip = memcmp(function, "\xf3\x0f\x1e\xfa", 4) == 0 ? 4 : 0;

	return pread(module->fd, bytes, sizeof(bytes), (off_t)place->file_offset) ==
		       sizeof(bytes) &&
	       memcmp(bytes, (const uint8_t *)function + skip, sizeof(bytes)) == 0;
}

// Functions of this very process, by name and by pattern.
static void test_functions(void)
{
	static const char *const patterns[] = {"lonely_function", "cloned_func?ion", "no_such_*",
					       "lonely_func", "test_fun*"};
	struct stall_function_place places[5 * STALL_FUNCTION_PLACES];
	struct stall_worker *worker = make_worker();
	struct stall_snapshot *snapshot = NULL;
	pid_t pid = getpid();
	size_t count = 0;

	CHECK_INT(lonely_function() + cloned() + cold(), 3);
	CHECK_OK(stall_snapshot_create(&arena, &pid, 1, NULL, &snapshot));
	CHECK_OK(stall_worker_find_functions(worker, snapshot, 0, patterns, 5, places, &count));
	CHECK_INT(count, 3);
	CHECK_INT(places[0].pattern, 0);
	CHECK(!places[0].clone);
	CHECK(is_at(snapshot, &places[0], lonely_function));
	CHECK_INT(places[1].pattern, 1);
	CHECK(places[1].clone);
	CHECK(is_at(snapshot, &places[1], cloned));
	CHECK_INT(places[2].pattern, 4);
	CHECK(is_at(snapshot, &places[2], test_functions));
	CHECK_OK(stall_worker_find_functions(worker, snapshot, 0, patterns, 0, places, &count));
	CHECK_INT(count, 0);
	stall_snapshot_destroy(snapshot);
	stall_worker_destroy(worker);
}

// A child that has had files or stacks before chooses no places; one that finds none is kept.
static void test_places_of_a_new_child(void)
{
	static const char *const here[] = {"lonely_function"}, *const nowhere[] = {"no_such_*"};
	struct stall_function_place places[STALL_FUNCTION_PLACES];
	struct stall_worker *worker = make_worker();
	struct stall_snapshot *snapshot = NULL;
	pid_t pid = getpid(), first = last_child();
	size_t count = 0;

	CHECK_OK(stall_snapshot_create(&arena, &pid, 1, NULL, &snapshot));
	CHECK_OK(stall_worker_find_functions(worker, snapshot, 0, here, 1, places, &count));
	CHECK_INT(count, 1);
	CHECK_OK(stall_worker_find_functions(worker, snapshot, 0, nowhere, 1, places, &count));
	CHECK_INT(count, 0);
	CHECK_INT(kill(first, 0), 0);
	CHECK_OK(stall_worker_find_functions(worker, snapshot, 0, here, 1, places, &count));
	CHECK_INT(count, 1);
	CHECK(is_at(snapshot, &places[0], lonely_function));
	CHECK(kill(first, 0) < 0);
	stall_snapshot_destroy(snapshot);
	stall_worker_destroy(worker);
}

int main(void)
{
	CHECK_OK(stall_arena_init(&arena, (size_t)256 << 20));
	test_data();
	test_functions();
	test_places_of_a_new_child();
	stall_arena_deinit(&arena);
	return check_done();
}
