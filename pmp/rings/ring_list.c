// SPDX-License-Identifier: Apache-2.0
#include "rings/ring_list.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "base/hash_index.h"
#include "proc/path_open.h"
#include "proc/proc_file.h"
#include "proc/target.h"
#include "rings/ring_file.h"
#include "rings/ring_find.h"

#define OF_ALL_USERS "/run/user/*/stallscope"
#define MAX_ENTRIES 65536 // of a folder that are read
#define PIECE ((size_t)64 << 10)
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

// Takes the error over: why it cannot be read.
static struct stall_error *add(struct stall_ring_list *list, const char *path,
			       struct stall_error *why)
{
	char *copy = strdup(path);

	if (!copy || !stall_array_reserve(&list->rings, list->count, 1, &list->capacity)) {
		free(copy);
		stall_error_destroy(why);
		return &stall_enomem;
	}
	list->rings[list->count++] = (struct stall_listed_ring){.path = copy, .err = why};
	return NULL;
}

struct stall_error *stall_ring_list_add(struct stall_ring_list *list, const char *path)
{
	if (list->count == STALL_RING_LIST_MAX)
		return NULL;
	struct stall_error *err = add(list, path, NULL);
	if (!err)
		list->rings[list->count - 1].err = read_ring(&list->rings[list->count - 1]);
	return err;
}

struct stall_error *stall_ring_list_add_process(struct stall_ring_list *list, pid_t pid)
{
	_cleanup_(stall_ring_closep) struct stall_ring *ring = NULL;
	_cleanup_error_ struct stall_error *none = stall_ring_open_process(pid, NULL, false, &ring);

	return none ? NULL : stall_ring_list_add(list, stall_ring_path(ring));
}

// As recorder_file.c names them, PID-TIME.ring: what else is in a shared folder is not ours.
static bool is_ring_name(const char *name)
{
	const char *at = name;
	size_t digits = strspn(at, "0123456789");

	if (!digits || at[digits] != '-')
		return false;
	at += digits + 1;
	size_t time = strspn(at, "0123456789abcdef");
	return time && !strcmp(at + time, STALL_RING_SUFFIX);
}

static bool is_folder_of_user(const char *name)
{
	return !strncmp(name, "stallscope-", strlen("stallscope-"));
}

static bool is_user(const char *name)
{
	return true;
}

struct names {
	char **names;
	size_t count, capacity;
};

static void names_deinit(struct names *names)
{
	for (size_t i = 0; i < names->count; i++)
		free(names->names[i]);
	free(names->names);
}

static int compare_names(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

static struct stall_error *add_name(struct names *names, const char *name)
{
	char *copy = strdup(name);

	if (!copy || !stall_array_reserve(&names->names, names->count, 1, &names->capacity)) {
		free(copy);
		return &stall_enomem;
	}
	names->names[names->count++] = copy;
	return NULL;
}

static struct stall_error *read_names(const char *folder, bool (*is_wanted)(const char *name),
				      struct names *ret)
{
	// Each user's folder may be on a disk of its own: who has one that does not answer hides no
	// rings of others.
	const struct stall_path where = {.folder = AT_FDCWD,
					 .name = folder,
					 .device = stall_hash(folder, strlen(folder))};
	_cleanup_free_ char *piece = malloc(PIECE);
	_cleanup_close_ int fd = -1;
	struct stall_folder_entry entry;
	size_t seen = 0, size = 1;
	struct stall_error *err =
		piece ? stall_path_open(&where, STALL_PATH_FOLDER, &fd, NULL) : &stall_enomem;

	while (!err && size && seen < MAX_ENTRIES) {
		size_t at = 0;

		err = stall_folder_next(fd, piece, PIECE, &size);
		while (!err && stall_folder_entry_next(piece, size, &at, &entry)) {
			seen++;
			if (is_wanted(entry.name))
				err = add_name(ret, entry.name);
		}
	}
	return err;
}

// The names in a folder, sorted. One that does not answer is in the list, as what cannot be read.
static struct stall_error *list_names(struct stall_ring_list *list, const char *folder,
				      bool (*is_wanted)(const char *name), struct names *ret)
{
	struct stall_error *err = read_names(folder, is_wanted, ret);

	if (ret->count)
		qsort(ret->names, ret->count, sizeof(*ret->names), compare_names);
	if (!err || err == &stall_enomem)
		return err;
	if (err->code == STALL_ERROR_LATE)
		return add(list, folder, err);
	stall_error_destroy(err); // none, or not for us
	return NULL;
}

static struct stall_error *add_folder(struct stall_ring_list *list, const char *folder)
{
	_cleanup_(names_deinit) struct names names = {};
	struct stall_error *err = list_names(list, folder, is_ring_name, &names);

	for (size_t i = 0; !err && i < names.count; i++) {
		_cleanup_free_ char *path = NULL;

		if (asprintf(&path, "%s/%s", folder, names.names[i]) < 0)
			return &stall_enomem;
		err = stall_ring_list_add(list, path);
	}
	return err;
}

// FOLDER/NAME + `rest`, of all names that are wanted.
static struct stall_error *add_folders(struct stall_ring_list *list, const char *folder,
				       bool (*is_wanted)(const char *name), const char *rest)
{
	_cleanup_(names_deinit) struct names names = {};
	struct stall_error *err = list_names(list, folder, is_wanted, &names);

	for (size_t i = 0; !err && i < names.count; i++) {
		_cleanup_free_ char *path = NULL;

		if (asprintf(&path, "%s/%s%s", folder, names.names[i], rest) < 0)
			return &stall_enomem;
		err = add_folder(list, path);
	}
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
		err = add_folders(list, "/run/user", is_user, "/stallscope");
	if (!err)
		err = add_folders(list, "/dev/shm", is_folder_of_user, "");
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
