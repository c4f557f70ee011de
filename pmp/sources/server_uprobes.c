// SPDX-License-Identifier: Apache-2.0
#include "sources/server_uprobes.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "ebpf/uprobes_loader.h"
#include "proc/path_open.h"
#include "proc/read_child.h"

#define MAX_PATTERNS (STALL_BPF_UPROBE_FUNCTIONS * 4)

// Of one function, in all processes.
struct probed {
	uint64_t hits_then; // at `then`
	bool stepped, too_many, refused;
	char why_not[640];
};

struct stall_server_uprobes {
	struct stall_bpf_waits *waits;
	uint64_t then; // when hits were last read
	struct probed *functions;
	char unread[640]; // why a server's own program was not searched, or empty
};

struct stall_error *stall_server_uprobes_create(struct stall_bpf_waits *waits,
						struct stall_server_uprobes **ret)
{
	_cleanup_(stall_server_uprobes_destroyp) struct stall_server_uprobes *uprobes =
		calloc(1, sizeof(*uprobes));

	if (!uprobes)
		return &stall_enomem;
	uprobes->waits = waits;
	uprobes->functions = calloc(stall_server_function_count, sizeof(*uprobes->functions));
	if (!uprobes->functions)
		return &stall_enomem;
	for (size_t i = 0; i < stall_server_function_count; i++)
		snprintf(uprobes->functions[i].why_not, sizeof(uprobes->functions[i].why_not),
			 "no symbol of this name");
	*ret = no_cleanup_ptr(uprobes);
	return NULL;
}

void stall_server_uprobes_destroy(struct stall_server_uprobes *uprobes)
{
	if (!uprobes)
		return;
	stall_bpf_waits_remove_all_uprobes(uprobes->waits);
	free(uprobes->functions);
	free(uprobes);
}

// The functions that are searched for in a process, and where they were found.
struct search {
	const char *patterns[MAX_PATTERNS];
	uint32_t functions[MAX_PATTERNS];
	bool waits_in[MAX_PATTERNS]; // not the function itself, but its waits_in
	size_t pattern_count;
	struct stall_function_place *places;
	size_t place_count;
};

static void add_patterns(struct search *search, const char *const *patterns, uint32_t function,
			 bool waits_in)
{
	for (; *patterns; patterns++) {
		search->patterns[search->pattern_count] = *patterns;
		search->functions[search->pattern_count] = function;
		search->waits_in[search->pattern_count++] = waits_in;
	}
}

// The distance from a place to the function in which its caller waits, in the same file. False:
// there is none, so the place is useless.
static bool find_next_call(const struct search *search, const struct stall_function_place *place,
			   int32_t *ret)
{
	for (size_t i = 0; i < search->place_count; i++) {
		const struct stall_function_place *next = &search->places[i];
		int64_t distance =
			(int64_t)(next->file_offset - next->skipped) - (int64_t)place->file_offset;

		if (!search->waits_in[next->pattern] || next->clone || next->refused ||
		    search->functions[next->pattern] != search->functions[place->pattern] ||
		    next->module != place->module || distance != (int32_t)distance)
			continue;
		*ret = (int32_t)distance;
		return true;
	}
	return false;
}

#define BREAKPOINT 0xcc

struct code {
	uint64_t file_offset;
	size_t size;
	uint8_t bytes[15]; // no instruction is longer
};

static int read_code(int fd, void *arg)
{
	struct code *code = arg;
	ssize_t n = pread(fd, code->bytes, code->size, (off_t)code->file_offset);

	return n == (ssize_t)code->size ? 0 : n < 0 ? errno : EIO;
}

// The kernel executes the file's instruction in place of what is under its breakpoint, whatever the
// process's memory has there: a process that has patched the function would jump astray.
static bool is_code_of_file(const struct stall_process *process,
			    const struct stall_function_place *place)
{
	const struct stall_mapping *mapping =
		stall_maps_find_code(process->maps, place->module, place->file_offset);
	struct code file = {.file_offset = place->file_offset};
	uint8_t memory[sizeof(file.bytes)];
	uint64_t distance = place->file_offset - mapping->offset;
	uint64_t left = mapping->end - mapping->start - distance;

	file.size = left < sizeof(memory) ? (size_t)left : sizeof(memory);
	if (stall_read_child_range(&process->target, mapping->start + distance, memory,
				   file.size) != file.size ||
	    stall_path_work(process->maps->modules[place->module].fd, read_code, &file,
			    sizeof(file)))
		return false;
	// Another program's uprobe, which the kernel knows, can be there.
	return (memory[0] == file.bytes[0] || memory[0] == BREAKPOINT) &&
	       !memcmp(memory + 1, file.bytes + 1, file.size - 1);
}

// False: `ret` says why.
static bool may_break(const struct stall_process *process, const struct stall_function_place *place,
		      char *ret, size_t size)
{
	const struct stall_module *module = &process->maps->modules[place->module];

	if (place->refused)
		snprintf(ret, size, "%s", place->refused);
	else if (!module->local) // to set a breakpoint, the kernel reads the file
		snprintf(ret, size,
			 "%s is on a file system that may never answer, of a network or of a "
			 "program",
			 module->path);
	else if (!is_code_of_file(process, place))
		snprintf(ret, size, "the code in memory is not that of %s", module->path);
	else
		return true;
	return false;
}

static void set_uprobe(struct stall_server_uprobes *uprobes, const struct stall_process *process,
		       const struct search *search, const struct stall_function_place *place)
{
	uint32_t function = search->functions[place->pattern];
	const struct stall_server_function *known = &stall_server_functions[function];
	struct probed *probed = &uprobes->functions[function];
	char path[32];

	if (!may_break(process, place, probed->why_not, sizeof(probed->why_not))) {
		probed->refused = true;
		return;
	}
	// The descriptor is of the mapped file, even if its path names another one by now.
	snprintf(path, sizeof(path), "/proc/self/fd/%d", process->maps->modules[place->module].fd);
	struct stall_bpf_uprobe uprobe = {
		.pid = process->target.pid,
		.path = path,
		.file_offset = place->file_offset,
		.function = function,
		// The compiler may change the arguments of a clone.
		.lock_arg = place->clone ? 0 : known->lock_arg,
		.second_arg = place->clone ? 0 : known->second_arg,
		.event = known->event,
		.prepares = known->prepares,
	};
	if (uprobe.prepares && !find_next_call(search, place, &uprobe.next_call)) {
		snprintf(probed->why_not, sizeof(probed->why_not),
			 "no symbol %s, in which it waits", known->waits_in[0]);
		return;
	}
	struct stall_error *err = stall_bpf_waits_add_uprobe(uprobes->waits, &uprobe);
	if (!err) {
		probed->stepped |= place->stepped;
		return;
	}
	snprintf(probed->why_not, sizeof(probed->why_not), "%s", err->message);
	stall_error_destroy(err);
}

static void note_unread(struct stall_server_uprobes *uprobes, const struct stall_process *process)
{
	for (size_t i = 0; process->exe && i < process->maps->module_count; i++) {
		const struct stall_module *module = &process->maps->modules[i];

		if (module->error && !strcmp(module->path, process->exe))
			snprintf(uprobes->unread, sizeof(uprobes->unread), "%s: %s", module->path,
				 module->error);
	}
}

const char *stall_server_uprobes_unread(const struct stall_server_uprobes *uprobes)
{
	return uprobes->unread[0] ? uprobes->unread : NULL;
}

struct stall_error *stall_server_uprobes_attach(struct stall_server_uprobes *uprobes,
						struct stall_worker *worker,
						const struct stall_snapshot *snapshot,
						uint32_t process)
{
	struct search search = {};

	for (uint32_t i = 0; i < stall_server_function_count; i++) {
		add_patterns(&search, stall_server_functions[i].patterns, i, false);
		add_patterns(&search, stall_server_functions[i].waits_in, i, true);
	}
	_cleanup_free_ struct stall_function_place *places =
		calloc(search.pattern_count * STALL_FUNCTION_PLACES, sizeof(*places));
	if (!places)
		return &stall_enomem;
	search.places = places;
	note_unread(uprobes, &snapshot->processes[process]);
	struct stall_error *err =
		stall_worker_find_functions(worker, snapshot, process, search.patterns,
					    search.pattern_count, places, &search.place_count);
	for (size_t i = 0; !err && i < search.place_count; i++) {
		uint32_t pattern = places[i].pattern;

		if (!search.waits_in[pattern] &&
		    !uprobes->functions[search.functions[pattern]].too_many)
			set_uprobe(uprobes, &snapshot->processes[process], &search, &places[i]);
	}
	stall_function_places_deinit(places, search.place_count);
	return err;
}

void stall_server_uprobes_remove(struct stall_server_uprobes *uprobes, pid_t pid)
{
	stall_bpf_waits_remove_uprobes(uprobes->waits, pid, 0);
}

// Hits may come in bursts of a tenth of a second.
static bool is_too_often(const struct probed *probed, uint64_t hits, uint64_t ns)
{
	uint64_t limit = probed->stepped ? STALL_MAX_STEPPED_HITS : STALL_MAX_UPROBE_HITS;

	return hits > limit / 10 && (double)hits * 1e9 > (double)limit * (double)ns;
}

static bool check_function(struct stall_server_uprobes *uprobes, uint32_t function, uint64_t ns)
{
	struct probed *probed = &uprobes->functions[function];
	uint64_t hits = stall_bpf_waits_uprobe_hits(uprobes->waits, function);
	uint64_t more = hits - probed->hits_then;

	probed->hits_then = hits;
	if (!stall_bpf_waits_uprobe_places(uprobes->waits, function) ||
	    !is_too_often(probed, more, ns))
		return false;
	stall_bpf_waits_remove_uprobes(uprobes->waits, 0, function);
	probed->too_many = true;
	snprintf(probed->why_not, sizeof(probed->why_not),
		 "taken away: it was called %llu times in %llu ms, which costs too much",
		 (unsigned long long)more, (unsigned long long)(ns / 1000000));
	return true;
}

bool stall_server_uprobes_check(struct stall_server_uprobes *uprobes, uint64_t now_ns)
{
	uint64_t ns = uprobes->then ? now_ns - uprobes->then : 1000000000;
	bool any = false;

	uprobes->then = now_ns;
	for (uint32_t i = 0; i < stall_server_function_count; i++)
		any |= check_function(uprobes, i, ns);
	return any;
}

void stall_server_uprobes_state(const struct stall_server_uprobes *uprobes, uint32_t function,
				struct stall_server_probe_state *ret)
{
	uint32_t places = stall_bpf_waits_uprobe_places(uprobes->waits, function);

	*ret = (struct stall_server_probe_state){
		.places = places,
		.hits = stall_bpf_waits_uprobe_hits(uprobes->waits, function),
		.refused = uprobes->functions[function].refused,
		.why_not = places ? NULL : uprobes->functions[function].why_not,
	};
}
