// SPDX-License-Identifier: Apache-2.0
// The text of a stat file of /proc.
#ifndef STALL_PROC_STAT_H
#define STALL_PROC_STAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define STALL_PROC_COMM 16

struct stall_proc_stat {
	char comm[STALL_PROC_COMM];
	char state; // R S D T t Z X I
	pid_t ppid;
	uint64_t flags;
	int64_t threads;
	uint64_t start_time;			     // clock ticks since boot
	uint64_t start_code, start_stack, start_brk; // 0: not for us
};

// Of a child of ours: "stat", "status". The text has an end.
bool stall_proc_read_of_child(pid_t pid, const char *name, char *ret, size_t size);
bool stall_proc_stat_of_child(pid_t pid, struct stall_proc_stat *ret);
bool stall_proc_stat_parse(const char *text, struct stall_proc_stat *ret);

#endif
