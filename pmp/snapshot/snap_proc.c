// SPDX-License-Identifier: Apache-2.0
// The backend that needs no privilege beyond ptrace access. Of the registers it only knows those
// that /proc/PID/task/TID/syscall shows, so unwinding may end early where code keeps a frame
// pointer; it has no data of running threads.
#include <errno.h>
#include <fcntl.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/privileges.h"
#include "snapshot/backend.h"
#include "snapshot/proc_copy.h"
#include "snapshot/proc_thread.h"

static struct stall_error *proc_check(const struct stall_snapshot_options *options)
{
	struct stall_error *err = stall_yama_refuses_all();
	char path[32];

	if (err)
		return err;
	// Access is refused per process; the first of several is checked here. Other errors are
	// reported when the processes are read.
	if (!options->pid_count)
		return NULL;
	snprintf(path, sizeof(path), "/proc/%d/maps", options->pids[0]);
	_cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd >= 0 || (errno != EACCES && errno != EPERM))
		return NULL;
	return stall_error_os(errno, "cannot open %s (needs its user, or CAP_SYS_PTRACE)", path);
}

static struct stall_error *proc_open(const struct stall_snapshot_options *options, void **ret)
{
	(void)options;
	*ret = NULL;
	return NULL;
}

static void proc_close(void *state)
{
	(void)state;
}

// The words are read once the threads that wait on them are known, and again at once: nothing is
// copied in between, but that shows a word that changes all the time.
static struct stall_error *read_futexes(struct stall_snapshot *snapshot)
{
	struct stall_error *err = stall_snapshot_read_futexes(snapshot);
	return err ? err : stall_snapshot_read_futexes(snapshot);
}

static struct stall_error *copy_all(struct stall_snapshot *snapshot,
				    const struct stall_snapshot_options *options,
				    uint64_t started_ns)
{
	_cleanup_free_ size_t *threads = calloc(snapshot->thread_count + 1, sizeof(*threads));
	_cleanup_free_ bool *gone = calloc(snapshot->thread_count + 1, sizeof(*gone));
	struct stall_proc_left left;

	if (!threads || !gone)
		return &stall_enomem;
	for (size_t i = 0; i < snapshot->thread_count; i++)
		threads[i] = i;
	struct stall_error *err = stall_proc_copy(snapshot, threads, snapshot->thread_count,
						  options, started_ns, gone, &left);
	if (err)
		return err;
	stall_proc_drop_gone(snapshot, gone);
	return stall_proc_note(snapshot, options, &left);
}

static struct stall_error *proc_capture(void *state, struct stall_snapshot *snapshot,
					const struct stall_snapshot_options *options)
{
	uint64_t started_ns = stall_clock_ns(CLOCK_MONOTONIC);

	(void)state;
	struct stall_error *err = stall_proc_list_threads(snapshot, options);
	if (!err)
		err = copy_all(snapshot, options, started_ns);
	if (!err)
		err = read_futexes(snapshot);
	snapshot->snapshot_ns = stall_clock_ns(CLOCK_MONOTONIC) - started_ns;
	for (size_t i = 0; !err && i < snapshot->process_count; i++)
		err = stall_process_check(&snapshot->processes[i]);
	return err;
}

static struct stall_error *proc_find_runs(void *state, const struct stall_snapshot *snapshot,
					  const uint32_t *threads, size_t count, bool *ret)
{
	(void)state;
	return stall_proc_find_runs(snapshot, threads, count, ret);
}

const struct stall_backend stall_backend_proc = {
	.name = "proc",
	.feature = "proc",
	.check = proc_check,
	.open = proc_open,
	.capture = proc_capture,
	.find_runs = proc_find_runs,
	.close = proc_close,
};
