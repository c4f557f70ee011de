// SPDX-License-Identifier: Apache-2.0
// A BPF program that runs for milliseconds is waited for.
#include "ebpf/grace_period.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <linux/bpf.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include "check.h"

#define READS 20000 // of memory that is not there, half a microsecond each or more
#define RUNS 5

struct marks {
	volatile uint32_t started, ended;
};

static struct marks *marks;
static int program;

// Marks its start, makes so many failed reads, and marks its end.
static int load_long_program(int map)
{
	const struct bpf_insn instructions[] = {
		{.code = BPF_LD | BPF_DW | BPF_IMM,
		 .dst_reg = BPF_REG_6,
		 .src_reg = BPF_PSEUDO_MAP_VALUE,
		 .imm = map},
		{},
		{.code = BPF_ST | BPF_MEM | BPF_W, .dst_reg = BPF_REG_6, .off = 0, .imm = 1},
		{.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = BPF_REG_7, .imm = 0},
		{.code = BPF_ALU64 | BPF_MOV | BPF_X, .dst_reg = BPF_REG_1, .src_reg = BPF_REG_10},
		{.code = BPF_ALU64 | BPF_ADD | BPF_K, .dst_reg = BPF_REG_1, .imm = -8},
		{.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = BPF_REG_2, .imm = 8},
		{.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = BPF_REG_3, .imm = 0},
		{.code = BPF_JMP | BPF_CALL, .imm = BPF_FUNC_probe_read_user},
		{.code = BPF_ALU64 | BPF_ADD | BPF_K, .dst_reg = BPF_REG_7, .imm = 1},
		{.code = BPF_JMP | BPF_JLT | BPF_K, .dst_reg = BPF_REG_7, .off = -7, .imm = READS},
		{.code = BPF_ST | BPF_MEM | BPF_W, .dst_reg = BPF_REG_6, .off = 4, .imm = 1},
		{.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = BPF_REG_0, .imm = 0},
		{.code = BPF_JMP | BPF_EXIT},
	};

	return bpf_prog_load(BPF_PROG_TYPE_RAW_TRACEPOINT, "long", "Dual BSD/GPL", instructions,
			     sizeof(instructions) / sizeof(instructions[0]), NULL);
}

static int make_marks(void)
{
	LIBBPF_OPTS(bpf_map_create_opts, opts, .map_flags = BPF_F_MMAPABLE);
	int map = bpf_map_create(BPF_MAP_TYPE_ARRAY, "marks", 4, sizeof(*marks), 1, &opts);

	if (map < 0)
		return map;
	marks = mmap(NULL, sizeof(*marks), PROT_READ | PROT_WRITE, MAP_SHARED, map, 0);
	CHECK(marks != MAP_FAILED);
	return map;
}

static void *run_program(void *arg)
{
	LIBBPF_OPTS(bpf_test_run_opts, opts);

	(void)arg;
	CHECK_INT(bpf_prog_test_run_opts(program, &opts), 0);
	return NULL;
}

// Returns whether the program was seen to run as the wait began.
static bool wait_for_one(const struct stall_grace_period *grace_period)
{
	pthread_t runner;

	marks->started = marks->ended = 0;
	CHECK_INT(pthread_create(&runner, NULL, run_program, NULL), 0);
	while (!marks->started)
		sched_yield();
	bool was_running = !marks->ended;
	CHECK_OK(stall_grace_period_wait(grace_period));
	CHECK_INT(marks->ended, 1);
	pthread_join(runner, NULL);
	return was_running;
}

static void test_waits_for_programs(const struct stall_grace_period *grace_period)
{
	int seen = 0;

	for (int i = 0; i < 40 * RUNS && seen < RUNS; i++)
		seen += wait_for_one(grace_period);
	printf("%d programs ran as the wait for them began\n", seen);
	// A kernel that does not preempt shows a program on this thread's CPU only at its end.
	CHECK(seen > 0 || sysconf(_SC_NPROCESSORS_ONLN) == 1);
}

static void test_failure_is_reported(void)
{
	struct stall_grace_period none = STALL_GRACE_PERIOD_NONE;
	struct stall_error *err = stall_grace_period_wait(&none);

	CHECK(err && err->errnum == EBADF);
	stall_error_destroy(err);
	stall_grace_period_deinit(&none);
}

int main(void)
{
	struct stall_grace_period grace_period;
	struct stall_error *err = stall_grace_period_init(&grace_period);

	if (err) {
		int end = check_missing("waits", err->message);
		stall_error_destroy(err);
		return end;
	}
	int map = make_marks();
	program = load_long_program(map);
	if (map < 0 || program < 0)
		return check_missing("waits", strerror(errno));
	test_waits_for_programs(&grace_period);
	test_failure_is_reported();
	stall_grace_period_deinit(&grace_period);
	close(program);
	close(map);
	return check_done();
}
