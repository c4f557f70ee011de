// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <string.h>

#include "check.h"
#include "snapshot/thread_record.h"

static struct stall_bpf_thread asleep(void)
{
	struct stall_bpf_thread record = {
		.flags = STALL_BPF_REGS,
		.tid = 7,
		.ns_tid = 3,
		.state = 1,
		.switches_before = 10,
		.switches_after = 10,
		.runtime = 1000,
		.exec_id = 4,
		.fs_base = 0x7000,
		.comm = "worker",
	};

	for (int i = 0; i < STALL_BPF_PT_REGS; i++)
		record.regs[i] = 100 + i;
	record.regs[STALL_BPF_CS] = 0x33;
	record.regs[STALL_BPF_ORIG_AX] = 202;
	record.regs[STALL_BPF_AX] = (uint64_t)-ENOSYS;
	return record;
}

static void test_states(void)
{
	static const struct {
		uint32_t state, exit_state;
		char letter;
	} cases[] = {
		{0x0, 0, 'R'},	 {0x1, 0, 'S'},	    {0x2, 0, 'D'},    {0x4, 0, 'T'},
		{0x8, 0, 't'},	 {0x402, 0, 'I'},   {0x102, 0, 'D'},  {0x104, 0, 'T'},
		{0x108, 0, 't'}, {0x2001, 0, 'S'},  {0x1000, 0, 'D'}, {0x80, 0x20, 'Z'},
		{0x80, 0, 'X'},	 {0x80, 0x10, 'X'}, {0x200, 0, 'R'},  {0x8000, 0, 'D'},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct stall_bpf_thread record = {.state = cases[i].state,
						  .exit_state = cases[i].exit_state};

		CHECK_INT(stall_record_state(&record), cases[i].letter);
	}
}

static void test_did_not_run(void)
{
	struct stall_bpf_thread before = asleep(), after = asleep();

	CHECK(stall_record_did_not_run(&before, &after));
	after.state = 0; // woken, and waits for a CPU
	CHECK(stall_record_did_not_run(&before, &after));
#define CHANGED(change)                                                                            \
	do {                                                                                       \
		after = asleep();                                                                  \
		after.change;                                                                      \
		CHECK(!stall_record_did_not_run(&before, &after));                                 \
	} while (0)
	CHANGED(switches_after = 11);
	CHANGED(on_cpu = 1);
	CHANGED(runtime++);
	CHANGED(exec_id++);
	CHANGED(fs_base++);
	CHANGED(regs[STALL_BPF_SP]--);
	CHANGED(regs[STALL_BPF_R15]--);
	CHANGED(flags = 0);
	// It ran while the first record was made, or was running all the time.
	after = asleep();
	before.switches_before = 9;
	CHECK(!stall_record_did_not_run(&before, &after));
	before = asleep();
	before.on_cpu = 1;
	CHECK(!stall_record_did_not_run(&before, &after));
}

static void test_fill(void)
{
	struct stall_bpf_thread record = asleep();
	const uint64_t frames[] = {0xffffffff81000000, 0xffffffff82000000};
	struct stall_thread thread = {};

	record.kernel_frame_count = 2;
	stall_record_fill(&record, frames, &thread);
	CHECK_INT(thread.tid, 7);
	CHECK_INT(thread.ns_tid, 3);
	CHECK_STRING(thread.comm, "worker");
	CHECK_INT(thread.state, 'S');
	CHECK_INT(thread.switches, 10);
	CHECK_INT(thread.regs.valid, 0x1ffff);
	CHECK_INT(thread.regs.value[STALL_REG_SP], 100 + STALL_BPF_SP);
	CHECK_INT(thread.regs.value[STALL_REG_PC], 100 + STALL_BPF_IP);
	CHECK_INT(thread.regs.value[STALL_REG_RBX], 100 + STALL_BPF_BX);
	CHECK_INT(thread.regs.value[STALL_REG_RBP], 100 + STALL_BPF_BP);
	CHECK_INT(thread.regs.value[1], 100 + STALL_BPF_DX);
	CHECK_INT(thread.regs.value[8], 100 + STALL_BPF_R8);
	CHECK_INT(thread.regs.value[15], 100 + STALL_BPF_R15);
	CHECK_INT(thread.kernel_frame_count, 2);
	CHECK_INT(thread.kernel_frames[1], 0xffffffff82000000);
	CHECK(thread.in_syscall);
	CHECK_INT(thread.syscall, 202);
	CHECK_INT(thread.args[0], 100 + STALL_BPF_DI);
	CHECK_INT(thread.args[3], 100 + STALL_BPF_R10);
	CHECK_INT(thread.args[5], 100 + STALL_BPF_R9);
}

static void test_not_in_syscall(void)
{
	struct stall_thread thread;
	struct stall_bpf_thread record;

#define NOT_IN_SYSCALL(change)                                                                     \
	do {                                                                                       \
		record = asleep();                                                                 \
		record.change;                                                                     \
		thread = (struct stall_thread){};                                                  \
		stall_record_fill(&record, (uint64_t[1]){}, &thread);                              \
		CHECK(!thread.in_syscall);                                                         \
	} while (0)
	NOT_IN_SYSCALL(regs[STALL_BPF_ORIG_AX] = UINT64_MAX); // a fault or an interrupt
	NOT_IN_SYSCALL(regs[STALL_BPF_AX] = 0);		      // on its way out
	NOT_IN_SYSCALL(regs[STALL_BPF_AX] = (uint64_t)-EAGAIN);
	NOT_IN_SYSCALL(flags |= STALL_BPF_COMPAT);
	NOT_IN_SYSCALL(on_cpu = 1);
	NOT_IN_SYSCALL(flags = 0);
	CHECK_INT(thread.regs.valid, 0);
	NOT_IN_SYSCALL(regs[STALL_BPF_CS] = 0x23); // 32-bit code
	CHECK_INT(thread.regs.valid, 0);
	NOT_IN_SYSCALL(regs[STALL_BPF_IP] = 0); // io_uring's worker
	CHECK_INT(thread.regs.valid, 0);
	// FRED keeps bits of its own above the selector.
	record = asleep();
	record.regs[STALL_BPF_CS] = 0x1000000000033;
	stall_record_fill(&record, (uint64_t[1]){}, &thread);
	CHECK(thread.in_syscall && thread.regs.valid);
}

int main(void)
{
	test_states();
	test_did_not_run();
	test_fill();
	test_not_in_syscall();
	return check_done();
}
