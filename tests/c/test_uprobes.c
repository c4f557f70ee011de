// SPDX-License-Identifier: Apache-2.0
// Uprobes in a program that waits as a database server does: tests/targets/server.c.
#include <bpf/bpf.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "check.h"
#include "ebpf/bpf_features.h"
#include "ebpf/uprobes_loader.h"
#include "ebpf/waits_read.h"
#include "ebpf/waits_state.h"
#include "proc/read_child.h"
#include "sources/server_uprobes.h"
#include "target_process.h"

static struct stall_arena arena;
static struct stall_worker *worker;
static struct stall_bpf_waits *waits;
static struct stall_server_uprobes *probes;
static struct stall_snapshot *snapshot;
static struct target_process server;

static uint32_t function_named(const char *name)
{
	for (uint32_t i = 0; i < stall_server_function_count; i++) {
		if (strcmp(stall_server_functions[i].name, name) == 0)
			return i;
	}
	CHECK(!"in the table");
	return 0;
}

static uint64_t hits(const char *name)
{
	return stall_bpf_waits_uprobe_hits(waits, function_named(name));
}

static struct stall_server_probe_state state_of(const char *name)
{
	struct stall_server_probe_state state;

	stall_server_uprobes_state(probes, function_named(name), &state);
	return state;
}

static unsigned long ask(const char *command, const char *name)
{
	char answer[256];

	CHECK(target_ask(&server, command, answer, sizeof(answer)));
	return target_number(answer, name);
}

// The slot of a thread that is in a wait.
static bool find_slot(pid_t tid, struct stall_wait_slot *ret)
{
	size_t count;
	const volatile struct stall_wait_slot *slots = stall_bpf_waits_slots(waits, &count);

	for (size_t i = 0; i < count; i++) {
		if (slots[i].tid != tid || !(slots[i].seq & 1))
			continue;
		memcpy(ret, (const void *)&slots[i], sizeof(*ret));
		return true;
	}
	return false;
}

static bool goes_on(const struct stall_wait_server *wait)
{
	uint64_t stacked;

	return stall_read_child_range(&snapshot->processes[0].target, wait->sp, &stacked,
				      sizeof(stacked)) == sizeof(stacked) &&
	       stall_server_wait_holds(wait, 0, stacked);
}

// Has the target make one wait and checks what is known of it.
static void check_wait(const char *command, const char *function, enum stall_wait_role role,
		       const char *lock, const char *text)
{
	struct stall_wait_slot slot = {};
	struct stall_server_wait wait = {};
	pid_t tid = (pid_t)ask(command, "tid");

	CHECK(find_slot(tid, &slot));
	CHECK(goes_on(&slot.server));
	CHECK(stall_server_wait_describe(&slot.server, &snapshot->processes[0].target, &wait));
	CHECK_STRING(wait.function ? wait.function->name : NULL, function);
	CHECK_INT(wait.role, role);
	CHECK_INT(wait.lock, target_number(server.facts, lock));
	CHECK_STRING(wait.text, text);
	ask("release", "");
}

// A latch that became free at the last moment is not what the thread waits for then.
static void test_reserved_only(void)
{
	struct stall_wait_slot slot = {};
	pid_t tid = (pid_t)ask("reserve", "tid");

	CHECK(find_slot(tid, &slot));
	CHECK_INT(slot.server.function, 0);
	ask("release", "");
}

struct events {
	size_t count;
	struct stall_wait_record last;
	bool in_copy;
};

static void take_record(void *arg, const struct stall_wait_record *record, const uint8_t *stack)
{
	struct events *events = arg;

	if (record->type != STALL_RECORD_SERVER)
		return;
	events->count++;
	events->last = *record;
	events->in_copy = stall_server_wait_in_copy(&record->server, record->stack_address, stack,
						    record->stack_size);
}

static void test_event(void)
{
	struct events events = {};
	struct stall_wait_handler handler = {.arg = &events, .wait = take_record};
	size_t count;

	CHECK_INT(ask("deadlock", "victim"), 1);
	CHECK_OK(stall_bpf_waits_consume(waits, &handler, 0, &count));
	CHECK_INT(events.count, 1);
	CHECK_INT(events.last.tid, server.pid);
	CHECK_INT(events.last.server.function, function_named("trx_weight_ge") + 1);
	CHECK_INT(events.last.server.lock, target_number(server.facts, "transaction"));
	CHECK_INT(events.last.server.arg, target_number(server.facts, "graph"));
	CHECK_INT(events.last.regs[STALL_BPF_SP], events.last.stack_address);
	// It is at the very start of the function: the return address is the first of the stack.
	CHECK(events.in_copy);
	CHECK_INT(hits("trx_weight_ge"), 1);
}

// Marks the records of all CPUs as the programs do while they write them. `is_taken` is the last
// member.
static void set_records_taken(uint64_t is_taken)
{
	const struct bpf_map *map = waits->skeleton->maps.record_buffers;
	size_t size = bpf_map__value_size(map);
	uint8_t *value = calloc(1, size);

	memcpy(value + size - sizeof(is_taken), &is_taken, sizeof(is_taken));
	for (uint32_t i = 0; i < bpf_map__max_entries(map); i++)
		CHECK_INT(bpf_map_update_elem(bpf_map__fd(map), &i, value, BPF_ANY), 0);
	free(value);
}

// A record that a preempted thread still writes is left alone, and the loss is counted.
static void test_event_while_preempted(void)
{
	struct events events = {};
	struct stall_wait_handler handler = {.arg = &events, .wait = take_record};
	uint64_t before[STALL_LOST_CAUSES], after[STALL_LOST_CAUSES];
	size_t count;

	stall_bpf_waits_lost(waits, before);
	set_records_taken(1);
	CHECK_INT(ask("deadlock", "victim"), 1);
	CHECK_OK(stall_bpf_waits_consume(waits, &handler, 0, &count));
	CHECK_INT(events.count, 0);
	stall_bpf_waits_lost(waits, after);
	CHECK_INT(after[STALL_LOST_MISSED], before[STALL_LOST_MISSED] + 1);
	set_records_taken(0);
	for (int i = 1; i <= 2; i++) {
		CHECK_INT(ask("deadlock", "victim"), 1);
		CHECK_OK(stall_bpf_waits_consume(waits, &handler, 0, &count));
		CHECK_INT(events.count, i);
	}
	stall_bpf_waits_lost(waits, after);
	CHECK_INT(after[STALL_LOST_MISSED], before[STALL_LOST_MISSED] + 1);
}

// Nothing is believed: neither a name that is none, nor a lock of another transaction.
static void test_false_claims(uint32_t rounds)
{
	struct stall_server_wait wait = {};
	uint8_t noise[4096];
	struct stall_wait_server lie = {.function = UINT16_MAX, .lock = (uintptr_t)noise};
	struct stall_target self = {};

	CHECK(!stall_server_wait_describe(&lie, NULL, &wait));
	CHECK_OK(stall_target_init(&self, getpid()));
	for (uint32_t round = 0; round < rounds; round++) {
		for (size_t i = 0; i < sizeof(noise); i += sizeof(uint64_t)) {
			// Pointers into the noise, so that chains of them lead on.
			uint64_t value = random() % 4 ? (uintptr_t)noise + random() % 4000
						      : (uint64_t)random() << 32 | random();

			memcpy(noise + i, &value, sizeof(value));
		}
		lie.function = (uint16_t)(1 + round % stall_server_function_count);
		lie.arg = random() % 360;
		CHECK(stall_server_wait_describe(&lie, &self, &wait));
		CHECK(memchr(wait.text, 0, sizeof(wait.text)));
		for (const char *c = wait.text; *c; c++)
			CHECK((unsigned char)*c >= ' ' && *c != 0x7f);
	}
	stall_target_deinit(&self);
}

// Where it begins, in the process's memory.
static uint64_t address_of(const char *function)
{
	const struct stall_maps *maps = snapshot->processes[0].maps;
	const char *patterns[] = {function};
	struct stall_function_place place[STALL_FUNCTION_PLACES];
	size_t count = 0;

	CHECK_OK(stall_worker_find_functions(worker, snapshot, 0, patterns, 1, place, &count));
	CHECK_INT(count, 1);
	const struct stall_module *module = &maps->modules[place[0].module];
	return module->start + place[0].file_offset - module->offset;
}

static uint8_t byte_at(uint64_t address)
{
	uint8_t byte = 0;

	CHECK_INT(stall_read_child_range(&snapshot->processes[0].target, address, &byte, 1), 1);
	return byte;
}

static uint8_t first_byte(const char *function)
{
	return byte_at(address_of(function));
}

// As a debugger does.
static void write_byte(uint64_t address, uint8_t byte)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/mem", server.pid);
	_cleanup_close_ int memory = open(path, O_WRONLY | O_CLOEXEC);
	CHECK_INT(pwrite(memory, &byte, 1, (off_t)address), 1);
}

static void check_refused(const char *function, uint8_t original, const char *why)
{
	CHECK_OK(stall_server_uprobes_attach(probes, worker, snapshot, 0));
	CHECK_INT(first_byte(function), original);
	CHECK_INT(state_of(function).places, 0);
	CHECK(state_of(function).refused);
	CHECK(strstr(state_of(function).why_not, why));
	stall_server_uprobes_remove(probes, server.pid);
}

// The kernel would execute the file's instruction, and read a file that may be on a dead disk.
static void test_refusals(void)
{
	static const char function[] = "trx_weight_ge";
	struct stall_maps *maps = snapshot->processes[0].maps;
	uint64_t address = address_of(function);
	uint8_t first = byte_at(address), second = byte_at(address + 1);

	write_byte(address + 1, second ^ 1);
	check_refused(function, first, "the code in memory is not that of /");
	write_byte(address + 1, second);
	for (size_t i = 0; i < maps->module_count; i++) {
		CHECK(maps->modules[i].local || !maps->modules[i].ino);
		maps->modules[i].local = false;
	}
	check_refused(function, first, "is on a file system that may never answer");
	for (size_t i = 0; i < maps->module_count; i++)
		maps->modules[i].local = true;
}

#define STORM_NS UINT64_C(100000000) // of a storm, on a machine that does nothing else

// A storm of calls is counted whole, and ends with the probe taken away.
static void test_storm(const char *command, const char *function, const char *symbol,
		       unsigned long calls)
{
	uint64_t before = hits(function), now = stall_clock_ns(CLOCK_MONOTONIC);

	stall_server_uprobes_check(probes, now);
	CHECK_INT(state_of(function).places, 1);
	CHECK_INT(first_byte(symbol), 0xcc);
	unsigned long with = ask(command, "ns");
	CHECK_INT(hits(function) - before, calls);
	CHECK(stall_server_uprobes_check(probes, now + STORM_NS));
	CHECK_INT(state_of(function).places, 0);
	CHECK(first_byte(symbol) != 0xcc);
	printf("a hit costs %lu ns; %s: %s\n", with / calls, function, state_of(function).why_not);
	ask(command, "ns");
	CHECK_INT(hits(function) - before, calls);
	// The others are still there.
	CHECK_INT(state_of("srv_suspend_mysql_thread").places, 1);
	CHECK(!stall_server_uprobes_check(probes, now + 2 * STORM_NS));
}

static void test_absent(void)
{
	struct stall_server_probe_state state = state_of("lock_wait_suspend_thread");

	CHECK_INT(state.places, 0);
	CHECK_INT(state.hits, 0);
	CHECK_STRING(state.why_not, "no symbol of this name");
}

static struct stall_error *try_uprobes(void)
{
	for (size_t i = 0; i < stall_bpf_feature_count; i++)
		if (!strcmp(stall_bpf_features[i].name, "uprobes"))
			return stall_bpf_features[i].check();
	CHECK(!"a feature named uprobes");
	return NULL;
}

// Returns how the test is to end where it cannot be done, else 0.
static int start(void)
{
	struct stall_bpf_waits_options options;
	struct stall_worker_options worker_options = {.deadline_ms = 10000};
	const char *argv[] = {"server", NULL};

	stall_bpf_waits_options_init(&options);
	struct stall_error *err = stall_bpf_waits_create(&options, &waits);
	const char *need = err ? "waits" : "uprobes";
	if (!err)
		err = try_uprobes();
	if (err) {
		int end = check_missing(need, err->message);
		stall_error_destroy(err);
		return end;
	}
	CHECK_OK(stall_arena_init(&arena, (size_t)256 << 20));
	CHECK_OK(stall_worker_create(&arena, &worker_options, &worker));
	CHECK(target_start(&server, argv));
	CHECK_OK(stall_snapshot_create(&arena, &server.pid, 1, NULL, &snapshot));
	CHECK_OK(stall_bpf_waits_add(waits, server.pid));
	CHECK_OK(stall_server_uprobes_create(waits, &probes));
	return 0;
}

int main(int argc, char **argv)
{
	srandom((unsigned int)check_seed(argc, argv));
	int skip = start();
	if (skip)
		return skip;
	uint8_t original = first_byte("srv_suspend_mysql_thread");
	test_refusals();
	CHECK_OK(stall_server_uprobes_attach(probes, worker, snapshot, 0));
	CHECK_INT(first_byte("srv_suspend_mysql_thread"), 0xcc);
	// One that is there already is no change of the code.
	CHECK_OK(stall_server_uprobes_attach(probes, worker, snapshot, 0));
	CHECK_INT(state_of("srv_suspend_mysql_thread").places, 2);
	stall_server_uprobes_remove(probes, server.pid);
	CHECK_OK(stall_server_uprobes_attach(probes, worker, snapshot, 0));
	check_wait("mutex", "sync_array_reserve_cell", STALL_ROLE_MUTEX, "mutex",
		   "created at srv0srv.c:1020");
	check_wait("rwlock", "sync_array_reserve_cell", STALL_ROLE_RWLOCK, "rwlock",
		   "created at dict0dict.c:1762");
	check_wait("row", "srv_suspend_mysql_thread", STALL_ROLE_ROW_LOCK, "row",
		   "test.t1 (PRIMARY) page 4 record 10");
	check_wait("inner", "sync_array_reserve_cell", STALL_ROLE_MUTEX, "mutex",
		   "created at srv0srv.c:1020");
	check_wait("metadata", "MDL_wait::timed_wait", STALL_ROLE_METADATA_LOCK, "metadata",
		   "test.t1");
	test_reserved_only();
	test_event();
	test_event_while_preempted();
	test_absent();
	test_false_claims(argc > 1 ? 5000 : 200);
	test_storm("storm 100000", "lock_wait", "_Z9lock_waitP9que_thr_t", 100000);
	test_storm("step 2000", "srw_mutex_impl::wait_and_lock",
		   "_ZN14srw_mutex_implILb1EE13wait_and_lockEv", 2000);
	stall_server_uprobes_destroy(probes);
	CHECK_INT(first_byte("srv_suspend_mysql_thread"), original);
	stall_bpf_waits_destroy(waits);
	stall_snapshot_destroy(snapshot);
	stall_worker_destroy(worker);
	stall_arena_deinit(&arena);
	target_stop(&server);
	return check_done();
}
