// SPDX-License-Identifier: Apache-2.0
#include "rings/ring_list.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <glob.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "proc/proc_file.h"
#include "proc/target.h"
#include "rings/ring_file.h"
#include "rings/ring_find.h"

#define OF_ALL_USERS "/run/user/*/stallscope"
#define MAX_PROCESSES (1 << 22)
#define FIRST_PID_NAMESPACE 0xEFFFFFFC // include/linux/proc_ns.h: PROC_PID_INIT_INO

void stall_ring_list_deinit(struct stall_ring_list *list)
{
	for (size_t i = 0; i < list->count; i++) {
		free(list->rings[i].path);
		stall_error_destroy(list->rings[i].err);
	}
	free(list->rings);
}

static void count_slots(const struct stall_ring *ring, struct stall_listed_ring *listed)
{
	size_t count;

	stall_ring_slots(ring, &count);
	for (size_t i = 0; i < count; i++) {
		struct stall_wait_slot slot;

		if (!stall_ring_read_slot(ring, i, &slot) || !slot.tid)
			continue;
		listed->threads++;
		listed->waiting += slot.seq & 1;
	}
}

static void copy_header(const struct stall_ring *ring, struct stall_ring_header *ret)
{
	const volatile struct stall_ring_header *live = stall_ring_live(ring);

	*ret = *stall_ring_header(ring);
	ret->enabled = live->enabled;
	ret->state = live->state;
	ret->waits = live->waits;
	ret->head = live->head;
	for (int i = 0; i < STALL_WAIT_KINDS; i++)
		ret->threshold_ns[i] = stall_ring_threshold(ring, (uint32_t)i);
	for (int i = 0; i < STALL_LOST_CAUSES; i++)
		ret->lost[i] = stall_ring_lost(ring, (uint32_t)i);
}

static struct stall_error *read_ring(struct stall_listed_ring *listed)
{
	_cleanup_(stall_ring_closep) struct stall_ring *ring = NULL;
	struct stall_error *err = stall_ring_open(listed->path, false, &ring);

	if (err)
		return err;
	listed->owner = stall_ring_owner(ring);
	copy_header(ring, &listed->header);
	count_slots(ring, listed);
	if (stall_ring_was_cut(ring))
		return stall_error_create(STALL_ERROR_FORMAT, "%s: cut while it was read",
					  listed->path);
	return NULL;
}

struct stall_error *stall_ring_list_add(struct stall_ring_list *list, const char *path)
{
	if (list->count == STALL_RING_LIST_MAX)
		return NULL;
	if (!stall_array_reserve(&list->rings, list->count, 1, &list->capacity))
		return &stall_enomem;
	struct stall_listed_ring *listed = &list->rings[list->count];
	*listed = (struct stall_listed_ring){.path = strdup(path)};
	if (!listed->path)
		return &stall_enomem;
	list->count++;
	listed->err = read_ring(listed);
	return NULL;
}

struct stall_error *stall_ring_list_add_process(struct stall_ring_list *list, pid_t pid)
{
	_cleanup_(stall_ring_closep) struct stall_ring *ring = NULL;
	_cleanup_error_ struct stall_error *none = stall_ring_open_process(pid, NULL, false, &ring);

	return none ? NULL : stall_ring_list_add(list, stall_ring_path(ring));
}

// As recorder_file.c names them, PID-TIME.ring: what else is in a shared folder is not ours.
static int is_ring_name(const struct dirent *entry)
{
	const char *at = entry->d_name;
	size_t digits = strspn(at, "0123456789");

	if (!digits || at[digits] != '-')
		return 0;
	at += digits + 1;
	size_t time = strspn(at, "0123456789abcdef");
	return time && !strcmp(at + time, STALL_RING_SUFFIX);
}

static int compare_names(const struct dirent **a, const struct dirent **b)
{
	return strcmp((*a)->d_name, (*b)->d_name);
}

static struct stall_error *add_folder(struct stall_ring_list *list, const char *folder)
{
	struct stall_error *err = NULL;
	struct dirent **entries;
	int count = scandir(folder, &entries, is_ring_name, compare_names);

	if (count < 0)
		return errno == ENOMEM ? &stall_enomem : NULL;
	for (int i = 0; i < count; i++) {
		_cleanup_free_ char *path = NULL;

		if (!err && asprintf(&path, "%s/%s", folder, entries[i]->d_name) < 0)
			err = &stall_enomem;
		if (!err)
			err = stall_ring_list_add(list, path);
		free(entries[i]);
	}
	free(entries);
	return err;
}

static struct stall_error *add_pattern(struct stall_ring_list *list, const char *pattern)
{
	struct stall_error *err = NULL;
	glob_t folders;

	if (glob(pattern, 0, NULL, &folders) != 0)
		return NULL;
	for (size_t i = 0; !err && i < folders.gl_pathc; i++)
		err = add_folder(list, folders.gl_pathv[i]);
	globfree(&folders);
	return err;
}

struct stall_error *stall_ring_list_add_all(struct stall_ring_list *list)
{
	const char *chosen = getenv("STALLSCOPE_RUNTIME_DIR"), *xdg = getenv("XDG_RUNTIME_DIR");
	_cleanup_free_ char *own = NULL;

	if (chosen && chosen[0])
		return add_folder(list, chosen);
	struct stall_error *err = add_folder(list, "/run/stallscope");
	if (!err && xdg && xdg[0] && asprintf(&own, "%s/stallscope", xdg) < 0)
		return &stall_enomem;
	// The usual one is among those of all users.
	if (!err && own && fnmatch(OF_ALL_USERS, own, FNM_PATHNAME))
		err = add_folder(list, own);
	if (!err)
		err = add_pattern(list, OF_ALL_USERS);
	if (!err)
		err = add_pattern(list, "/dev/shm/stallscope-*");
	return err;
}

// Of another pid namespace than ours, by what /proc says of them.
struct processes {
	struct process {
		pid_t pid, ns_pid;
		uint64_t start_time;
	} * items;
	size_t count, capacity;
	bool read;
};

static struct stall_error *add_process(struct processes *processes, pid_t pid)
{
	struct process process = {.pid = pid};

	if (!stall_ring_identify(pid, &process.ns_pid, &process.start_time) ||
	    process.ns_pid == pid)
		return NULL;
	if (!stall_array_reserve(&processes->items, processes->count, 1, &processes->capacity))
		return &stall_enomem;
	processes->items[processes->count++] = process;
	return NULL;
}

static struct stall_error *read_processes(struct processes *processes)
{
	struct stall_error *err = NULL;
	struct dirent *entry;
	DIR *dir = opendir("/proc");

	if (!dir)
		return NULL;
	for (size_t i = 0; !err && i < MAX_PROCESSES && (entry = readdir(dir)); i++) {
		if (isdigit((unsigned char)entry->d_name[0]))
			err = add_process(processes, atoi(entry->d_name));
	}
	closedir(dir);
	processes->read = true;
	return err;
}

// *ret: 0 where it is not among the processes that we see.
static struct stall_error *find_process(struct processes *processes,
					const struct stall_ring_header *header, pid_t *ret)
{
	struct stall_error *err = NULL;

	*ret = 0;
	if (stall_ring_is_live(header, header->pid)) {
		*ret = header->pid;
		return NULL;
	}
	if (header->pid_namespace && header->pid_namespace == stall_proc_pid_namespace(NULL))
		return NULL;
	if (!processes->read)
		err = read_processes(processes);
	for (size_t i = 0; !err && i < processes->count; i++) {
		const struct process *process = &processes->items[i];

		if (process->ns_pid == header->pid && process->start_time == header->start_time &&
		    stall_ring_is_live(header, process->pid)) {
			*ret = process->pid;
			break;
		}
	}
	return err;
}

// Whether a server that lived would be among the processes that we see.
static bool would_be_seen(const struct stall_ring_header *header)
{
	uint64_t own = stall_proc_pid_namespace(NULL);

	if (!own || !header->start_time)
		return false;
	if (header->pid_namespace == own) {
		// Asks, whatever /proc hides.
		if (kill(header->pid, 0) < 0 && errno == ESRCH)
			return true;
		return stall_process_is_visible(header->pid); // it is another process
	}
	// From the first namespace all are seen, unless /proc is mounted with hidepid.
	return own == FIRST_PID_NAMESPACE && stall_process_is_visible(1);
}

static struct stall_error *judge(struct processes *processes, struct stall_listed_ring *listed)
{
	const struct stall_ring_header *header = &listed->header;

	if (header->state == STALL_RING_ENDED) {
		listed->life = STALL_RING_LIFE_ENDED;
		return NULL;
	}
	if (stall_ring_is_of_another_boot(header)) {
		listed->life = STALL_RING_LIFE_LEFT;
		return NULL;
	}
	struct stall_error *err = find_process(processes, header, &listed->process);
	if (listed->process)
		listed->life = STALL_RING_LIFE_ALIVE;
	else if (!err && would_be_seen(header))
		listed->life = STALL_RING_LIFE_LEFT;
	return err;
}

// A process has one ring, the newest: one that executes another program keeps pid and start time, and
// who may not look into it does not see that its stack is another.
static void drop_older(struct stall_ring_list *list)
{
	for (size_t i = 0; i < list->count; i++) {
		struct stall_listed_ring *one = &list->rings[i];

		for (size_t j = 0; one->process && j < list->count; j++) {
			const struct stall_listed_ring *other = &list->rings[j];

			if (other->process != one->process ||
			    other->header.created_ns <= one->header.created_ns)
				continue;
			one->life = STALL_RING_LIFE_LEFT;
			one->process = 0;
		}
	}
}

struct stall_error *stall_ring_list_judge(struct stall_ring_list *list)
{
	struct stall_error *err = NULL;
	struct processes processes = {};

	for (size_t i = 0; !err && i < list->count; i++)
		if (!list->rings[i].err)
			err = judge(&processes, &list->rings[i]);
	free(processes.items);
	drop_older(list);
	return err;
}
