// SPDX-License-Identifier: Apache-2.0
#include "ebpf/uprobes_loader.h"

#include <bpf/bpf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/array.h"
#include "ebpf/bpf_error.h"
#include "ebpf/waits_state.h"

#define UPROBE_TYPE "/sys/bus/event_source/devices/uprobe/type"

static const char *find_why_not(void)
{
	struct stall_bpf_log log;

	if (access(UPROBE_TYPE, R_OK) < 0)
		return "no uprobes in this kernel (CONFIG_UPROBE_EVENTS): waits are named by their "
		       "stacks alone";
	stall_bpf_log_begin(&log);
	int rc = libbpf_probe_bpf_helper(BPF_PROG_TYPE_KPROBE, BPF_FUNC_get_attach_cookie, NULL);
	stall_bpf_log_end(&log);
	return rc == 1 ? NULL
		       : "uprobes have no cookies in this kernel (newer ones have them): waits are "
			 "named by their stacks alone";
}

void stall_uprobes_prepare(struct stall_uprobes *uprobes, struct waits *skeleton)
{
	uprobes->why_not = find_why_not();
	bpf_program__set_autoload(skeleton->progs.stall_server_call, !uprobes->why_not);
	bpf_program__set_autoload(skeleton->progs.stall_server_event, !uprobes->why_not);
}

// While links are closed a child holds them too, so that they end with it. For the kernel takes
// a breakpoint away in the thread that closes it last, and gives up when that thread is killed:
// get_user_pages() fails then, register_for_each_vma() of kernel/events/uprobes.c says "leaking
// uprobe", and an int3 stays in the code of the server. A process that exits already takes no
// signal any more (prepare_signal() of kernel/signal.c).
struct link_keeper {
	pid_t child; // -1: there is none, and they are closed here
	int release;
};

static struct link_keeper keep_links(void)
{
	struct link_keeper keeper = {.child = -1, .release = -1};
	int ends[2];
	char nothing;

	if (pipe2(ends, O_CLOEXEC) < 0)
		return keeper;
	keeper.child = fork();
	if (keeper.child == 0) {
		close(ends[1]);
		while (read(ends[0], &nothing, 1) < 0 && errno == EINTR)
			;
		_exit(0);
	}
	close(ends[0]);
	if (keeper.child < 0)
		close(ends[1]);
	else
		keeper.release = ends[1];
	return keeper;
}

static void release_links(struct link_keeper keeper)
{
	if (keeper.child < 0)
		return;
	close(keeper.release);
	while (waitpid(keeper.child, NULL, 0) < 0 && errno == EINTR)
		;
}

typedef bool (*place_filter)(const struct stall_uprobe_place *place, pid_t pid, uint32_t function);

static bool is_any(const struct stall_uprobe_place *place, pid_t pid, uint32_t function)
{
	(void)place, (void)pid, (void)function;
	return true;
}

static bool is_of(const struct stall_uprobe_place *place, pid_t pid, uint32_t function)
{
	return pid ? place->uprobe.pid == pid : place->uprobe.function == function;
}

static bool has_links(const struct stall_uprobes *uprobes, place_filter filter, pid_t pid,
		      uint32_t function)
{
	for (size_t i = 0; i < uprobes->count; i++) {
		if (uprobes->places[i].link && filter(&uprobes->places[i], pid, function))
			return true;
	}
	return false;
}

static void remove_links(struct stall_uprobes *uprobes, place_filter filter, pid_t pid,
			 uint32_t function)
{
	if (!has_links(uprobes, filter, pid, function))
		return;
	struct link_keeper keeper = keep_links();
	for (size_t i = 0; i < uprobes->count; i++) {
		struct stall_uprobe_place *place = &uprobes->places[i];

		if (!place->link || !filter(place, pid, function))
			continue;
		bpf_link__destroy(place->link);
		place->link = NULL;
	}
	release_links(keeper);
}

static void remove_places(struct stall_uprobes *uprobes, place_filter filter, pid_t pid,
			  uint32_t function)
{
	size_t kept = 0;

	remove_links(uprobes, filter, pid, function);
	for (size_t i = 0; i < uprobes->count; i++) {
		struct stall_uprobe_place *place = &uprobes->places[i];

		if (filter(place, pid, function))
			close(place->file);
		else
			uprobes->places[kept++] = *place;
	}
	uprobes->count = kept;
}

void stall_uprobes_deinit(struct stall_uprobes *uprobes)
{
	remove_places(uprobes, is_any, 0, 0);
	free(uprobes->places);
	uprobes->places = NULL;
	uprobes->count = uprobes->capacity = 0;
}

static struct stall_error *make_room(struct stall_uprobes *uprobes)
{
	return stall_array_reserve(&uprobes->places, uprobes->count, 1, &uprobes->capacity)
		       ? NULL
		       : &stall_enomem;
}

static struct stall_error *set_uprobe(struct stall_bpf_waits *waits,
				      struct stall_uprobe_place *place)
{
	const struct stall_bpf_uprobe *uprobe = &place->uprobe;
	struct stall_bpf_log log;
	char path[32];
	// Unpacked by count_hit() in programs/waits/uprobes.bpf.c.
	LIBBPF_OPTS(bpf_uprobe_opts, opts,
		    .bpf_cookie = uprobe->function | (uint64_t)uprobe->lock_arg << 8 |
				  (uint64_t)uprobe->second_arg << 16 |
				  (uint64_t)uprobe->prepares << 24 |
				  (uint64_t)(uint32_t)uprobe->next_call << 32);

	snprintf(path, sizeof(path), "/proc/self/fd/%d", place->file);
	stall_bpf_log_begin(&log);
	place->link =
		bpf_program__attach_uprobe_opts(uprobe->event
							? waits->skeleton->progs.stall_server_event
							: waits->skeleton->progs.stall_server_call,
						uprobe->pid, path, uprobe->file_offset, &opts);
	int errnum = errno;
	stall_bpf_log_end(&log);
	return place->link
		       ? NULL
		       : stall_error_os(errnum, "cannot set a uprobe in process %d", uprobe->pid);
}

struct stall_error *stall_bpf_waits_add_uprobe(struct stall_bpf_waits *waits,
					       const struct stall_bpf_uprobe *uprobe)
{
	struct stall_uprobes *uprobes = &waits->uprobes;

	if (uprobes->why_not)
		return stall_error_create(STALL_ERROR_UNSUPPORTED, "%s", uprobes->why_not);
	if (uprobe->function >= STALL_BPF_UPROBE_FUNCTIONS)
		return stall_error_create(STALL_ERROR_LIMIT, "more than %d functions to probe",
					  STALL_BPF_UPROBE_FUNCTIONS);
	struct stall_error *err = make_room(uprobes);
	if (err)
		return err;
	struct stall_uprobe_place place = {.uprobe = *uprobe};
	place.uprobe.path = NULL; // the caller's
	place.file = open(uprobe->path, O_RDONLY | O_CLOEXEC);
	if (place.file < 0)
		return stall_error_os(errno, "cannot open the file of a uprobe in process %d",
				      uprobe->pid);
	err = waits->attached ? set_uprobe(waits, &place) : NULL;
	if (err) {
		close(place.file);
		return err;
	}
	uprobes->places[uprobes->count++] = place;
	return NULL;
}

void stall_bpf_waits_set_uprobes(struct stall_bpf_waits *waits)
{
	for (size_t i = 0; i < waits->uprobes.count; i++) {
		if (waits->uprobes.places[i].link)
			continue;
		struct stall_error *err = set_uprobe(waits, &waits->uprobes.places[i]);
		stall_error_destroy(err);
	}
}

void stall_bpf_waits_rest_uprobes(struct stall_bpf_waits *waits)
{
	remove_links(&waits->uprobes, is_any, 0, 0);
}

void stall_bpf_waits_remove_uprobes(struct stall_bpf_waits *waits, pid_t pid, uint32_t function)
{
	remove_places(&waits->uprobes, is_of, pid, function);
}

void stall_bpf_waits_remove_all_uprobes(struct stall_bpf_waits *waits)
{
	remove_places(&waits->uprobes, is_any, 0, 0);
}

uint32_t stall_bpf_waits_uprobe_places(const struct stall_bpf_waits *waits, uint32_t function)
{
	uint32_t places = 0;

	for (size_t i = 0; i < waits->uprobes.count; i++)
		places += waits->uprobes.places[i].uprobe.function == function;
	return places;
}

uint64_t stall_bpf_waits_uprobe_hits(const struct stall_bpf_waits *waits, uint32_t function)
{
	const volatile uint64_t *hits = (void *)waits->skeleton->bss->uprobe_hits;

	return function < STALL_BPF_UPROBE_FUNCTIONS ? hits[function] : 0;
}
