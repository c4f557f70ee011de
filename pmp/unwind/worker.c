// SPDX-License-Identifier: Apache-2.0
#include "unwind/worker.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/child_process.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "proc/path_broker.h"
#include "proc/path_open.h"
#include "proc/stuck_child.h"
#include "sandbox/sandbox.h"
#include "unwind/debug_file.h"
#include "unwind/worker_child.h"
#include "unwind/worker_job.h"
#include "unwind/worker_result.h"

#define MAX_ATTEMPTS 4		     // workers used up by one job
#define GRACE_NS UINT64_C(200000000) // for a worker to notice its deadline
#define STUCK_MS 1000
#define START_NS UINT64_C(5000000000)
#define MAX_READS 16384 // pages of target memory a job
#define MANY_THREADS 4096

struct stall_worker {
	struct stall_arena *arena;
	struct stall_search_dirs debug_dirs, pack_dirs;
	unsigned int deadline_ms;
	unsigned int missing_layers;
	uint8_t *region;
	pid_t pid;	   // 0: none
	int socket, files; // for jobs, and for files that are opened for the child
	struct stall_bad_files bad_files;
	// The last file of a worker that died or was late, where that alone proves nothing.
	struct stall_bad_file suspect;
	bool has_suspect;
	// The process whose files and stacks this child has had, in all of its jobs.
	struct stall_bad_file_owner seen;
	bool has_seen, has_seen_several;
	size_t reads; // of this job
};

// False: it waits for a disk, and cannot be ended now.
static bool stop_child(struct stall_worker *worker)
{
	bool ended = worker->pid <= 0 || stall_child_end(worker->pid);

	stall_closep(&worker->socket);
	stall_closep(&worker->files);
	worker->pid = 0;
	worker->socket = worker->files = -1;
	return ended;
}

static bool send_answer(struct stall_worker *worker, const struct stall_protocol_message *message,
			const void *data, size_t size)
{
	struct iovec parts[2] = {{(void *)message, sizeof(*message)}, {(void *)data, size}};

	// Not blocking: a worker that floods us with requests fills its own queue.
	return stall_send_descriptor(worker->socket, parts, size ? 2 : 1, -1, MSG_DONTWAIT) >= 0;
}

enum outcome { OUTCOME_MESSAGE, OUTCOME_DIED, OUTCOME_STUCK, OUTCOME_LATE };

static enum outcome receive(struct stall_worker *worker, uint64_t until_ns,
			    struct stall_protocol_message *ret)
{
	struct stall_stuck stuck = {};

	for (;;) {
		struct pollfd polled[] = {{.fd = worker->socket, .events = POLLIN},
					  {.fd = worker->files, .events = POLLIN}};
		uint64_t now = stall_clock_ns(CLOCK_MONOTONIC);

		if (now >= until_ns)
			return OUTCOME_LATE;
		uint64_t left_ms = (until_ns - now) / 1000000 + 1;
		int rc = poll(polled, 2,
			      left_ms < STALL_STUCK_LOOK_MS ? (int)left_ms : STALL_STUCK_LOOK_MS);
		if (rc == 0 && left_ms > STALL_STUCK_LOOK_MS &&
		    stall_child_is_stuck(worker->pid, &stuck, STUCK_MS))
			return OUTCOME_STUCK;
		if (rc == 0 || (rc < 0 && errno == EINTR))
			continue;
		if (rc < 0)
			return OUTCOME_DIED;
		if (polled[1].revents && !stall_path_answer(worker->files))
			return OUTCOME_DIED;
		if (!polled[0].revents)
			continue;
		// Without room for control data, descriptors that a worker may send are dropped.
		ssize_t n = recv(worker->socket, ret, sizeof(*ret), MSG_DONTWAIT);
		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			continue;
		return n == (ssize_t)sizeof(*ret) ? OUTCOME_MESSAGE : OUTCOME_DIED;
	}
}

// Only while it is forked: a worker must not see another worker's memory, which would count against
// its limit.
static void share_memory(const struct stall_worker *worker, bool share)
{
	stall_arena_inherit(worker->arena, share);
	madvise(worker->region, STALL_WORKER_REGION, share ? MADV_DOFORK : MADV_DONTFORK);
}

static struct stall_error *start_child(struct stall_worker *worker)
{
	int sockets[2], files[2];
	struct stall_protocol_message message;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) < 0)
		return stall_error_os(errno, "cannot make a socket for the unwinding process");
	worker->socket = sockets[0];
	_cleanup_close_ int its_socket = sockets[1];
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, files) < 0)
		return stall_error_os(errno, "cannot make a socket for the unwinding process");
	worker->files = files[0];
	_cleanup_close_ int its_files = files[1];
	struct stall_worker_child child = {
		.arena = worker->arena,
		.region = worker->region,
		.region_size = STALL_WORKER_REGION,
		.socket = its_socket,
		.files = its_files,
		.parent = getpid(),
		.debug_dirs = &worker->debug_dirs,
		.pack_dirs = &worker->pack_dirs,
	};
	worker->has_seen = worker->has_seen_several = false;
	share_memory(worker, true);
	pid_t pid = fork();
	if (pid == 0)
		stall_worker_child_main(&child);
	int errnum = errno;
	share_memory(worker, false);
	if (pid < 0) {
		stop_child(worker);
		return stall_error_os(errnum, "cannot fork the unwinding process");
	}
	worker->pid = pid;
	enum outcome outcome =
		receive(worker, stall_clock_ns(CLOCK_MONOTONIC) + START_NS, &message);
	if (outcome == OUTCOME_MESSAGE && message.type == STALL_PROTOCOL_READY &&
	    message.status == 0) {
		worker->missing_layers = message.module & ((1U << STALL_SANDBOX_LAYERS) - 1);
		return NULL;
	}
	stop_child(worker);
	if (outcome == OUTCOME_MESSAGE && message.status > 0)
		return stall_error_os(message.status,
				      "cannot take privileges from the unwinding process");
	return stall_error_create(STALL_ERROR_OTHER, "the unwinding process ended at its start");
}

static void worker_destroyp(struct stall_worker **worker)
{
	stall_worker_destroy(*worker);
}

static struct stall_error *open_dirs(const struct stall_worker_options *options,
				     struct stall_search_dirs *debug_dirs,
				     struct stall_search_dirs *pack_dirs)
{
	struct stall_error *err =
		stall_search_dirs_init(debug_dirs, &options->debug_dir, options->debug_dir ? 1 : 0,
				       STALL_DEBUG_DIR);

	return err ? err
		   : stall_search_dirs_init(pack_dirs, options->pack_dirs, options->pack_dir_count,
					    STALL_PACK_DIR);
}

struct stall_error *stall_worker_open_dirs(const struct stall_worker_options *options)
{
	_cleanup_(stall_search_dirs_deinit) struct stall_search_dirs debug_dirs = {};
	_cleanup_(stall_search_dirs_deinit) struct stall_search_dirs pack_dirs = {};

	return open_dirs(options, &debug_dirs, &pack_dirs);
}

struct stall_error *stall_worker_create(struct stall_arena *arena,
					const struct stall_worker_options *options,
					struct stall_worker **ret)
{
	_cleanup_(worker_destroyp) struct stall_worker *worker = calloc(1, sizeof(*worker));

	if (!worker)
		return &stall_enomem;
	worker->socket = worker->files = -1;
	worker->arena = arena;
	worker->deadline_ms =
		options->deadline_ms ? options->deadline_ms : STALL_DEFAULT_DEADLINE_MS;
	struct stall_error *err = open_dirs(options, &worker->debug_dirs, &worker->pack_dirs);
	if (err)
		return err;
	void *region = mmap(NULL, STALL_WORKER_REGION, PROT_READ | PROT_WRITE,
			    MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (region == MAP_FAILED)
		return stall_error_os(errno, "cannot reserve memory for the unwinding process");
	worker->region = region;
	madvise(region, STALL_WORKER_REGION, MADV_DONTDUMP);
	err = start_child(worker);
	if (err)
		return err;
	*ret = no_cleanup_ptr(worker);
	return NULL;
}

void stall_worker_destroy(struct stall_worker *worker)
{
	if (!worker)
		return;
	stop_child(worker);
	if (worker->region)
		munmap(worker->region, STALL_WORKER_REGION);
	stall_search_dirs_deinit(&worker->debug_dirs);
	stall_search_dirs_deinit(&worker->pack_dirs);
	free(worker);
}

unsigned int stall_worker_missing_layers(const struct stall_worker *worker)
{
	return worker->missing_layers;
}

static bool answer_file(struct stall_worker *worker, const struct stall_job_layout *layout,
			const struct stall_protocol_message *question)
{
	struct stall_protocol_message answer = {.type = STALL_PROTOCOL_FILE};
	uint32_t process, module;
	int fd = -1;

	if (stall_job_module(layout, question->module, &process, &module))
		fd = layout->snapshot->processes[process].maps->modules[module].fd;
	int errnum = fd < 0 ? ENOENT : stall_path_pass(worker->socket, &answer, sizeof(answer), fd);
	if (!errnum)
		return true;
	answer.status = errnum;
	return send_answer(worker, &answer, NULL, 0);
}

static bool answer_read(struct stall_worker *worker, const struct stall_job_layout *layout,
			const struct stall_protocol_message *question)
{
	struct stall_protocol_message answer = {.type = STALL_PROTOCOL_READ};
	uint8_t page[STALL_PROTOCOL_PAGE];

	if (stall_job_has_process(layout, question->process) && ++worker->reads <= MAX_READS)
		answer.size = stall_snapshot_read(layout->snapshot, question->process,
						  question->address, page, sizeof(page));
	return send_answer(worker, &answer, page, answer.size);
}

static void note_seen(struct stall_worker *worker, const struct stall_job_layout *layout)
{
	const struct stall_snapshot *snapshot = layout->snapshot;

	for (uint32_t i = 0; i < snapshot->process_count; i++) {
		const struct stall_process *process = &snapshot->processes[i];

		if (!stall_job_has_process(layout, i))
			continue;
		if (!worker->has_seen)
			worker->seen = stall_bad_file_owner(process);
		else if (!stall_bad_file_owner_is(&worker->seen, process))
			worker->has_seen_several = true;
		worker->has_seen = true;
	}
}

static enum outcome serve(struct stall_worker *worker, const struct stall_job_layout *layout)
{
	struct stall_protocol_message message = {.type = STALL_PROTOCOL_JOB};
	uint64_t until = layout->job.deadline_ns + GRACE_NS;

	worker->reads = 0;
	note_seen(worker, layout);
	if (!send_answer(worker, &message, NULL, 0))
		return OUTCOME_DIED;
	for (;;) {
		enum outcome outcome = receive(worker, until, &message);
		bool answered = false;

		if (outcome != OUTCOME_MESSAGE)
			return outcome;
		if (message.type == STALL_PROTOCOL_DONE)
			return OUTCOME_MESSAGE;
		if (message.type == STALL_PROTOCOL_FILE)
			answered = answer_file(worker, layout, &message);
		else if (message.type == STALL_PROTOCOL_READ)
			answered = answer_read(worker, layout, &message);
		if (!answered)
			return OUTCOME_DIED;
	}
}

// The file that the worker reported to be busy with, which may be false.
static bool read_accused(const struct stall_worker *worker, const struct stall_job_layout *layout,
			 struct stall_bad_file *ret)
{
	const volatile struct stall_protocol_job *live = (void *)worker->region;
	uint32_t current_module = live->current_module, process, module;

	if (current_module == 0 || !stall_job_module(layout, current_module - 1, &process, &module))
		return false;
	const struct stall_process *owner = &layout->snapshot->processes[process];
	*ret = (struct stall_bad_file){.owner = stall_bad_file_owner(owner)};
	return stall_protocol_key_read(&owner->maps->modules[module], &ret->key);
}

// Keeps the file that the worker was busy with away from the next worker: at once where the worker
// died of it or its disk does not answer, the second time where it was late, which a busy machine may cause. A worker that has
// had data of several processes is not trusted: the file that it names is tried first.
static void accuse(struct stall_worker *worker, const struct stall_job_layout *layout, bool late)
{
	struct stall_bad_file accused;

	if (!read_accused(worker, layout, &accused))
		return;
	bool again = worker->has_suspect && stall_bad_file_is_same(&accused, &worker->suspect);
	worker->has_suspect = worker->has_seen_several || (late && !again);
	if (worker->has_suspect)
		worker->suspect = accused;
	else
		stall_bad_files_add(&worker->bad_files, &accused);
}

static struct stall_job_layout make_layout(const struct stall_worker *worker,
					   const struct stall_snapshot *snapshot)
{
	return (struct stall_job_layout){
		.region = worker->region,
		.size = STALL_WORKER_REGION,
		.snapshot = snapshot,
		.only = STALL_ALL_PROCESSES,
	};
}

typedef struct stall_error *fill_function(struct stall_job_layout *layout, void *arg);

struct task {
	enum stall_protocol_kind kind;
	fill_function *fill;
	void *arg;
};

// One worker's attempt at the job, or at the part of layout->only.
static struct stall_error *attempt(struct stall_worker *worker, struct stall_job_layout *layout,
				   const struct task *task, uint64_t deadline, enum outcome *ret)
{
	stall_job_deinit(layout);
	struct stall_error *err = stall_job_fill(layout, task->kind, &worker->bad_files);
	if (!err)
		err = task->fill(layout, task->arg);
	if (!err)
		err = stall_job_finish(layout, deadline);
	if (!err && !worker->pid)
		err = start_child(worker);
	if (err)
		return err;
	enum outcome outcome = serve(worker, layout);
	if (outcome != OUTCOME_MESSAGE) {
		accuse(worker, layout, outcome == OUTCOME_LATE);
		stop_child(worker);
	}
	*ret = outcome;
	return NULL;
}

// Gives the data of the suspect's process to a worker that has had no other data. The file that
// this worker names is trusted for that process: no other process can have taken the worker over.
static struct stall_error *try_suspect(struct stall_worker *worker, struct stall_job_layout *layout,
				       const struct task *task, uint64_t deadline)
{
	const struct stall_snapshot *snapshot = layout->snapshot;
	uint64_t now = stall_clock_ns(CLOCK_MONOTONIC);
	enum outcome outcome;
	uint32_t suspect = 0;

	while (suspect < snapshot->process_count &&
	       !stall_bad_file_owner_is(&worker->suspect.owner, &snapshot->processes[suspect]))
		suspect++;
	// Of one process the job itself is the trial.
	if (suspect == snapshot->process_count || snapshot->process_count == 1 ||
	    layout->only != STALL_ALL_PROCESSES || now >= deadline)
		return NULL;
	if (worker->has_seen)
		stop_child(worker);
	layout->only = suspect;
	// Keep half of the time for the job.
	struct stall_error *err =
		attempt(worker, layout, task, now + (deadline - now) / 2, &outcome);
	layout->only = STALL_ALL_PROCESSES;
	worker->has_suspect = false;
	return err;
}

// Runs the job, with several workers if necessary. *ret_partial: it is not complete. The caller
// deinits the layout.
static struct stall_error *run(struct stall_worker *worker, struct stall_job_layout *layout,
			       const struct task *task, bool *ret_partial)
{
	uint64_t deadline =
		stall_clock_ns(CLOCK_MONOTONIC) + worker->deadline_ms * UINT64_C(1000000);
	enum outcome outcome = OUTCOME_DIED;

	*ret_partial = true;
	for (int i = 0; i < MAX_ATTEMPTS && (outcome == OUTCOME_DIED || outcome == OUTCOME_STUCK);
	     i++) {
		struct stall_error *err =
			worker->has_suspect ? try_suspect(worker, layout, task, deadline) : NULL;

		if (!err)
			err = attempt(worker, layout, task, deadline, &outcome);
		if (err)
			return err;
	}
	*ret_partial = outcome != OUTCOME_MESSAGE;
	// Start a worker for the next job. The results of this one are useful even where that
	// fails.
	if (*ret_partial)
		stall_error_destroy(start_child(worker));
	return NULL;
}

// Release the pages of a huge job, which later small ones do not need.
static void trim_region(struct stall_worker *worker, const struct stall_job_layout *layout)
{
	if (layout->job.thread_count > MANY_THREADS || layout->job.module_count > MANY_THREADS)
		madvise(worker->region, STALL_WORKER_REGION, MADV_REMOVE);
}

static struct stall_error *fill_threads(struct stall_job_layout *layout, void *arg)
{
	return stall_job_fill_threads(layout);
}

struct stall_error *stall_worker_unwind(struct stall_worker *worker,
					const struct stall_snapshot *snapshot,
					struct stall_unwound *ret)
{
	_cleanup_(stall_job_deinit) struct stall_job_layout layout = make_layout(worker, snapshot);
	struct stall_unwound unwound = {};
	bool partial;
	struct stall_error *err =
		run(worker, &layout, &(struct task){STALL_PROTOCOL_UNWIND, fill_threads, NULL},
		    &partial);

	if (!err)
		err = stall_result_read(&layout, &unwound);
	if (err)
		return err;
	unwound.partial |= partial;
	trim_region(worker, &layout);
	*ret = unwound;
	return NULL;
}

struct queries {
	struct stall_protocol_query *entries;
	size_t count;
	const char *const *names; // FIND_DATA: one for each
};

static struct stall_error *fill_queries(struct stall_job_layout *layout, void *arg)
{
	struct queries *queries = arg;

	for (size_t i = 0; queries->names && i < queries->count; i++)
		queries->entries[i].name = stall_job_string(layout, queries->names[i]);
	return stall_job_fill_queries(layout, queries->entries, queries->count);
}

// Reads the answers back into `entries`.
static void read_queries(const struct stall_job_layout *layout, struct queries *queries)
{
	memcpy(queries->entries, layout->region + layout->job.queries,
	       queries->count * sizeof(*queries->entries));
}

struct stall_error *stall_worker_name_data(struct stall_worker *worker,
					   const struct stall_snapshot *snapshot,
					   struct stall_data_query *queries, size_t count)
{
	_cleanup_(stall_job_deinit) struct stall_job_layout layout = make_layout(worker, snapshot);
	_cleanup_free_ struct stall_protocol_query *entries = calloc(count + 1, sizeof(*entries));
	_cleanup_free_ char *strings = NULL;
	struct queries job = {entries, count, NULL};
	size_t size;
	bool partial;

	if (!entries)
		return &stall_enomem;
	for (size_t i = 0; i < count; i++) {
		entries[i].process = queries[i].process;
		entries[i].address = queries[i].address;
		queries[i].name = NULL;
		queries[i].offset = 0;
	}
	if (!count)
		return NULL;
	struct stall_error *err =
		run(worker, &layout, &(struct task){STALL_PROTOCOL_NAME_DATA, fill_queries, &job},
		    &partial);
	if (!err)
		err = stall_result_strings(&layout, &strings, &size);
	if (err)
		return err;
	read_queries(&layout, &job);
	for (size_t i = 0; i < count; i++) {
		const char *name = stall_result_string(strings, size, entries[i].found);

		if (!name)
			continue;
		queries[i].name = strndup(name, STALL_MAX_SYMBOL);
		queries[i].offset = entries[i].offset;
		if (!queries[i].name)
			return &stall_enomem;
	}
	return NULL;
}

struct stall_error *stall_worker_find_data(struct stall_worker *worker,
					   const struct stall_snapshot *snapshot, uint32_t process,
					   const char *name, uint64_t *ret_address,
					   uint64_t *ret_size)
{
	_cleanup_(stall_job_deinit) struct stall_job_layout layout = make_layout(worker, snapshot);
	struct stall_protocol_query entry = {.process = process};
	struct queries job = {&entry, 1, &name};
	bool partial;
	struct stall_error *err =
		run(worker, &layout, &(struct task){STALL_PROTOCOL_FIND_DATA, fill_queries, &job},
		    &partial);

	if (err)
		return err;
	read_queries(&layout, &job);
	*ret_address = entry.found ? entry.address : 0;
	*ret_size = entry.found ? entry.size : 0;
	return NULL;
}

struct stall_error *stall_worker_find_main_data(struct stall_worker *worker,
						const struct stall_snapshot *snapshot,
						uint32_t process, const char *const *names,
						size_t count, uint64_t *ret_addresses)
{
	_cleanup_(stall_job_deinit) struct stall_job_layout layout = make_layout(worker, snapshot);
	_cleanup_free_ struct stall_protocol_query *entries = calloc(count + 1, sizeof(*entries));
	struct queries job = {entries, count, names};
	bool partial;

	if (!entries)
		return &stall_enomem;
	layout.only = process;
	for (size_t i = 0; i < count; i++)
		entries[i] = (struct stall_protocol_query){
			.process = process,
			.offset = STALL_PROTOCOL_MAIN_ONLY,
		};
	struct stall_error *err =
		run(worker, &layout, &(struct task){STALL_PROTOCOL_FIND_DATA, fill_queries, &job},
		    &partial);
	if (err)
		return err;
	read_queries(&layout, &job);
	for (size_t i = 0; i < count; i++)
		ret_addresses[i] = entries[i].found ? entries[i].address : 0;
	return NULL;
}

struct patterns {
	uint32_t process;
	const char *const *patterns;
	size_t count;
	struct stall_protocol_query *entries; // STALL_PROTOCOL_PLACES for each
};

static struct stall_error *fill_patterns(struct stall_job_layout *layout, void *arg)
{
	struct patterns *patterns = arg;
	size_t places = patterns->count * STALL_PROTOCOL_PLACES;

	for (size_t i = 0; i < places; i++) {
		uint64_t name =
			i % STALL_PROTOCOL_PLACES
				? patterns->entries[i - 1].name
				: stall_job_string(layout,
						   patterns->patterns[i / STALL_PROTOCOL_PLACES]);

		patterns->entries[i] =
			(struct stall_protocol_query){.process = patterns->process, .name = name};
	}
	return stall_job_fill_queries(layout, patterns->entries, places);
}

struct stall_error *stall_worker_find_functions(struct stall_worker *worker,
						const struct stall_snapshot *snapshot,
						uint32_t process, const char *const *patterns,
						size_t pattern_count,
						struct stall_function_place *ret, size_t *ret_count)
{
	_cleanup_(stall_job_deinit) struct stall_job_layout layout = make_layout(worker, snapshot);
	size_t places = pattern_count * STALL_PROTOCOL_PLACES;
	_cleanup_free_ struct stall_protocol_query *entries = calloc(places + 1, sizeof(*entries));
	struct patterns job = {process, patterns, pattern_count, entries};
	const struct task task = {STALL_PROTOCOL_FIND_FUNCTIONS, fill_patterns, &job};
	struct stall_error *err = NULL;
	bool partial;

	*ret_count = 0;
	if (!entries)
		return &stall_enomem;
	layout.only = process;
	for (bool used = worker->has_seen; !err; used = false) {
		err = run(worker, &layout, &task, &partial);
		if (!err)
			err = stall_function_places_read(&layout, ret, ret_count);
		if (err || !used || !*ret_count)
			break;
		// Most processes have none: only these are left to a child that has seen nothing else.
		stall_function_places_deinit(ret, *ret_count);
		*ret_count = 0;
		stop_child(worker);
	}
	return err;
}
