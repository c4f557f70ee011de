// SPDX-License-Identifier: Apache-2.0
#include "unwind/worker_job.h"
#include "proc/path_status.h"

#include <stdlib.h>
#include <string.h>

#include "base/lengths.h"

struct stall_bad_file_owner stall_bad_file_owner(const struct stall_process *process)
{
	return (struct stall_bad_file_owner){process->target.pid, process->target.start_time};
}

static bool is_same_owner(const struct stall_bad_file_owner *a,
			  const struct stall_bad_file_owner *b)
{
	return a->pid == b->pid && a->start_time == b->start_time;
}

bool stall_bad_file_owner_is(const struct stall_bad_file_owner *owner,
			     const struct stall_process *process)
{
	const struct stall_bad_file_owner other = stall_bad_file_owner(process);

	return is_same_owner(owner, &other);
}

bool stall_bad_file_is_same(const struct stall_bad_file *a, const struct stall_bad_file *b)
{
	return is_same_owner(&a->owner, &b->owner) && memcmp(&a->key, &b->key, sizeof(a->key)) == 0;
}

// The one to remove: the oldest of a process that has too many, else the oldest of all.
static size_t find_oldest(const struct stall_bad_files *bad_files,
			  const struct stall_bad_file_owner *owner)
{
	size_t first = 0, count = 0;

	for (size_t i = bad_files->count; i-- > 0;) {
		if (is_same_owner(&bad_files->list[i].owner, owner)) {
			first = i;
			count++;
		}
	}
	if (count >= STALL_MAX_BAD_FILES_OF_PROCESS)
		return first;
	return bad_files->count == STALL_MAX_BAD_FILES ? 0 : SIZE_MAX;
}

void stall_bad_files_add(struct stall_bad_files *bad_files, const struct stall_bad_file *bad_file)
{
	size_t oldest = find_oldest(bad_files, &bad_file->owner);

	if (oldest != SIZE_MAX) {
		bad_files->count--;
		memmove(&bad_files->list[oldest], &bad_files->list[oldest + 1],
			(bad_files->count - oldest) * sizeof(*bad_file));
	}
	bad_files->list[bad_files->count++] = *bad_file;
}

bool stall_bad_files_has(const struct stall_bad_files *bad_files,
			 const struct stall_process *process, const struct stall_protocol_key *key)
{
	const struct stall_bad_file wanted = {stall_bad_file_owner(process), *key};

	for (size_t i = 0; bad_files && i < bad_files->count; i++) {
		if (stall_bad_file_is_same(&bad_files->list[i], &wanted))
			return true;
	}
	return false;
}

static void *take(struct stall_job_layout *layout, size_t count, size_t size, uint64_t *ret_at)
{
	size_t at = (layout->used + 15) & ~(size_t)15;
	size_t bytes;

	if (!stall_mul(count, size, &bytes) || !stall_fits(at, bytes, layout->size))
		return NULL;
	layout->used = at + bytes;
	*ret_at = at;
	return layout->region + at;
}

static struct stall_error *too_large(void)
{
	return stall_error_create(STALL_ERROR_LIMIT,
				  "the snapshot is too large for the unwinding process: lower "
				  "--max-threads");
}

uint64_t stall_job_string(struct stall_job_layout *layout, const char *text)
{
	uint64_t at = 0;
	size_t size = strlen(text) + 1;
	char *copy = take(layout, size, 1, &at);

	if (copy)
		memcpy(copy, text, size);
	return at;
}

bool stall_protocol_key_read(const struct stall_module *module, struct stall_protocol_key *ret)
{
	struct stall_path_status status;

	// The file's own numbers: those in /proc/PID/maps differ from them on overlayfs and btrfs.
	if (module->fd < 0 || !stall_fd_status(module->fd, &status))
		return false;
	*ret = (struct stall_protocol_key){
		.dev = status.dev,
		.ino = status.ino,
		.size = status.size,
		.mtime_ns = status.mtime_ns,
	};
	return true;
}

bool stall_job_has_process(const struct stall_job_layout *layout, uint32_t process)
{
	return process < layout->snapshot->process_count &&
	       (layout->only == STALL_ALL_PROCESSES || layout->only == process);
}

static size_t count_mappings(const struct stall_maps *maps)
{
	size_t count = 0;

	for (size_t i = 0; i < maps->mapping_count; i++)
		count +=
			maps->mappings[i].executable && maps->mappings[i].module != STALL_NO_MODULE;
	return count;
}

static void fill_mappings(const struct stall_maps *maps, uint32_t first_module,
			  struct stall_protocol_mapping *entry)
{
	for (size_t i = 0; i < maps->mapping_count; i++) {
		const struct stall_mapping *mapping = &maps->mappings[i];

		if (!mapping->executable || mapping->module == STALL_NO_MODULE)
			continue;
		*entry++ = (struct stall_protocol_mapping){
			.start = mapping->start,
			.end = mapping->end,
			.offset = mapping->offset,
			.module = first_module + mapping->module,
		};
	}
}

struct filling {
	struct stall_job_layout *layout;
	struct stall_protocol_process *processes;
	struct stall_protocol_mapping *mappings;
	struct stall_protocol_module *modules;
	const struct stall_bad_files *bad_files;
};

static bool fill_module(struct filling *f, uint32_t process, uint32_t index)
{
	const struct stall_process *owner = &f->layout->snapshot->processes[process];
	const struct stall_module *module = &owner->maps->modules[index];
	struct stall_protocol_module *entry = &f->modules[f->layout->first_module[process] + index];

	*entry = (struct stall_protocol_module){
		.process = process,
		.module = index,
		.start = module->start,
		.end = module->end,
		.offset = module->offset,
		.path = stall_job_string(f->layout, module->path),
	};
	entry->has_fd = stall_protocol_key_read(module, &entry->key);
	entry->bad = stall_bad_files_has(f->bad_files, owner, &entry->key);
	return entry->path;
}

static bool fill_process(struct filling *f, uint32_t index)
{
	const struct stall_process *process = &f->layout->snapshot->processes[index];
	const struct stall_maps *maps = process->maps;
	struct stall_protocol_process *entry = &f->processes[index];
	struct stall_protocol_job *job = &f->layout->job;

	*entry = (struct stall_protocol_process){
		.first_mapping = job->mapping_count,
		.first_module = f->layout->first_module[index],
		.main_module = UINT32_MAX,
	};
	if (!stall_job_has_process(f->layout, index))
		return true;
	entry->mapping_count = (uint32_t)count_mappings(maps);
	entry->module_count = (uint32_t)maps->module_count;
	fill_mappings(maps, entry->first_module, f->mappings + job->mapping_count);
	job->mapping_count += entry->mapping_count;
	for (uint32_t i = 0; i < maps->module_count; i++) {
		if (!fill_module(f, index, i))
			return false;
		if (process->exe && entry->main_module == UINT32_MAX &&
		    strcmp(maps->modules[i].path, process->exe) == 0)
			entry->main_module = entry->first_module + i;
	}
	return true;
}

struct stall_error *stall_job_fill(struct stall_job_layout *layout, enum stall_protocol_kind kind,
				   const struct stall_bad_files *bad_files)
{
	const struct stall_snapshot *snapshot = layout->snapshot;
	struct stall_protocol_job *job = &layout->job;
	struct filling f = {layout, .bad_files = bad_files};
	size_t modules = 0, mappings = 0;

	layout->used = sizeof(*job);
	*job = (struct stall_protocol_job){.kind = kind,
					   .process_count = (uint32_t)snapshot->process_count};
	layout->first_module = calloc(snapshot->process_count + 1, sizeof(*layout->first_module));
	if (!layout->first_module)
		return &stall_enomem;
	for (uint32_t i = 0; i < snapshot->process_count; i++) {
		layout->first_module[i] = (uint32_t)modules;
		if (!stall_job_has_process(layout, i))
			continue;
		modules += snapshot->processes[i].maps->module_count;
		mappings += count_mappings(snapshot->processes[i].maps);
	}
	layout->first_module[snapshot->process_count] = (uint32_t)modules;
	f.processes = take(layout, snapshot->process_count, sizeof(*f.processes), &job->processes);
	f.mappings = take(layout, mappings, sizeof(*f.mappings), &job->mappings);
	f.modules = take(layout, modules, sizeof(*f.modules), &job->modules);
	if (!f.processes || !f.mappings || !f.modules)
		return too_large();
	job->module_count = (uint32_t)modules;
	for (uint32_t i = 0; i < snapshot->process_count; i++) {
		if (!fill_process(&f, i))
			return too_large();
	}
	return NULL;
}

static void fill_thread(const struct stall_job_layout *layout, const struct stall_thread *thread,
			struct stall_protocol_thread *entry)
{
	*entry = (struct stall_protocol_thread){.process = thread->process};
	if (!stall_job_has_process(layout, thread->process))
		return;
	entry->regs = thread->regs;
	entry->stack_address = thread->stack_address;
	if (!thread->stack)
		return;
	entry->stack_size = thread->stack_size;
	entry->stack = (uint64_t)(thread->stack - layout->snapshot->arena->base);
}

struct stall_error *stall_job_fill_threads(struct stall_job_layout *layout)
{
	const struct stall_snapshot *snapshot = layout->snapshot;
	size_t count = 0;

	for (size_t i = 0; i < snapshot->thread_count; i++)
		count += !snapshot->threads[i].unchanged;
	struct stall_protocol_thread *threads =
		take(layout, count, sizeof(*threads), &layout->job.threads);
	if (!threads)
		return too_large();
	for (size_t i = 0; i < snapshot->thread_count; i++)
		if (!snapshot->threads[i].unchanged)
			fill_thread(layout, &snapshot->threads[i], threads++);
	layout->job.thread_count = (uint32_t)count;
	return NULL;
}

struct stall_error *stall_job_fill_queries(struct stall_job_layout *layout,
					   const struct stall_protocol_query *queries, size_t count)
{
	struct stall_protocol_query *copy =
		take(layout, count, sizeof(*copy), &layout->job.queries);

	if (!copy)
		return too_large();
	memcpy(copy, queries, count * sizeof(*copy));
	layout->job.query_count = (uint32_t)count;
	return NULL;
}

// A name of a function is 100 bytes or so, a stack of a server 25 frames.
struct stall_error *stall_job_finish(struct stall_job_layout *layout, uint64_t deadline_ns)
{
	struct stall_protocol_job *job = &layout->job;

	job->deadline_ns = deadline_ns;
	void *stacks =
		take(layout, job->thread_count, sizeof(struct stall_protocol_stack), &job->stacks);
	void *infos = take(layout, job->module_count, sizeof(struct stall_protocol_module_info),
			   &job->infos);
	if (!stacks || !infos || layout->size - layout->used < (1U << 20))
		return too_large();
	memset(stacks, 0, job->thread_count * sizeof(struct stall_protocol_stack));
	memset(infos, 0, job->module_count * sizeof(struct stall_protocol_module_info));
	size_t rest = layout->size - layout->used - 4096;
	job->frame_capacity = rest / 4 / sizeof(struct stall_protocol_frame);
	job->index_capacity = rest / 4 / sizeof(uint32_t);
	job->string_capacity = rest / 4;
	take(layout, job->frame_capacity, sizeof(struct stall_protocol_frame), &job->frames);
	take(layout, job->index_capacity, sizeof(uint32_t), &job->indexes);
	take(layout, job->string_capacity, 1, &job->strings);
	memcpy(layout->region, job, sizeof(*job));
	return NULL;
}

void stall_job_deinit(struct stall_job_layout *layout)
{
	free(layout->first_module);
	layout->first_module = NULL;
}

bool stall_job_module(const struct stall_job_layout *layout, uint32_t index, uint32_t *ret_process,
		      uint32_t *ret_module)
{
	uint32_t low = 0, high = (uint32_t)layout->snapshot->process_count;

	if (index >= layout->job.module_count)
		return false;
	while (high - low > 1) {
		uint32_t middle = low + (high - low) / 2;

		if (layout->first_module[middle] <= index)
			low = middle;
		else
			high = middle;
	}
	*ret_process = low;
	*ret_module = index - layout->first_module[low];
	return true;
}
