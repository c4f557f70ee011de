// SPDX-License-Identifier: Apache-2.0
// A scene of the recorder that reads the ring which it writes itself: recording.h starts the
// scenes.
#ifndef STALL_OWN_RING_H
#define STALL_OWN_RING_H

#include <sys/syscall.h>

#include "recording.h"

#define MS 1000000ULL
#define ROOM 65536
// The default threshold: no wait is as long, however late its thread gets to its end. A record of a
// wait has the words around its object, and some objects here are no memory.
#define NEVER (1000000 * MS)

static char directory[PATH_MAX];

static inline struct stall_ring *own_ring(void)
{
	static struct stall_ring *ring;

	if (!ring) {
		recording_wait_once();
		ring = recording_open(directory, getpid());
	}
	return ring;
}

static inline uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000ULL + now.tv_nsec;
}

static inline size_t own_slot(void)
{
	size_t count;
	const volatile struct stall_wait_slot *slots = stall_ring_slots(own_ring(), &count);

	for (size_t i = 0; i < count; i++)
		if (slots[i].tid == syscall(SYS_gettid))
			return i;
	return SIZE_MAX;
}

// Copied; tag 0: there is none.
static inline struct stall_wait_stat stat_of(uint64_t object, uint32_t kind)
{
	struct stall_wait_stat none = {};
	size_t count;
	volatile struct stall_wait_stat *stats = stall_ring_stats(own_ring(), &count);

	for (size_t i = 0; i < count; i++)
		if (stats[i].key.id == object && stats[i].key.kind == kind && stats[i].used)
			return *(struct stall_wait_stat *)&stats[i];
	return none;
}

static inline void set_role(uint64_t object, enum stall_wait_role role)
{
	size_t count;
	volatile struct stall_wait_stat *stats = stall_ring_stats(own_ring(), &count);

	for (size_t i = 0; i < count; i++)
		if (stats[i].key.id == object)
			stats[i].role = role;
}

static inline void set_threshold(uint64_t ns)
{
	for (int i = 0; i < STALL_WAIT_KINDS; i++)
		stall_ring_live(own_ring())->threshold_ns[i] = ns;
}

static inline uint64_t lost(enum stall_wait_lost cause)
{
	return stall_ring_live(own_ring())->lost[cause];
}

static uint64_t cursor; // of records
static struct stall_ring_record_copy last;
static uint8_t last_stack[ROOM];

static inline bool next_record(void)
{
	uint64_t missed = 0;

	return stall_ring_next_record(own_ring(), &cursor, &missed, &last, last_stack, ROOM);
}

static inline void pass_records(void)
{
	while (next_record())
		;
}

static inline struct recorder_wait cond_wait(const void *object)
{
	struct recorder_wait wait = recording_lock(object);

	wait.operation = STALL_RING_COND_WAIT;
	return wait;
}

/* Scenes. */

struct scene {
	const char *name;
	void (*run)(void);
	const char *env; // "NAME=VALUE"; NULL: none
};

// Once for each scene, in a process of its own.
static inline int run_scene(const struct scene *scenes, size_t count, const char *name)
{
	snprintf(directory, sizeof(directory), "%s", getenv("STALLSCOPE_RUNTIME_DIR"));
	CHECK(own_ring() != NULL);
	if (own_ring())
		set_threshold(NEVER);
	for (size_t i = 0; i < count && check_failed == 0; i++)
		if (!strcmp(name, scenes[i].name))
			scenes[i].run();
	recorder_exits();
	return check_done();
}

static inline int run_scenes(const struct scene *scenes, size_t count, int argc, char **argv)
{
	struct recording scene;
	char line[64];

	if (argc > 1)
		return run_scene(scenes, count, argv[1]);
	recording_make_directory(directory);
	for (size_t i = 0; i < count; i++) {
		const char *env[] = {scenes[i].env, NULL};
		recording_start(&scene, scenes[i].name, directory, env);
		CHECK(recording_read_line(&scene, line, sizeof(line)));
		printf("%s: %s\n", scenes[i].name, line);
		CHECK_INT(recording_end(&scene, 0), 0);
		fputs(scene.text, stderr);
	}
	recording_remove_directory(directory);
	return check_done();
}

#endif
