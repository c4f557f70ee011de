// SPDX-License-Identifier: Apache-2.0
// The worker under attack: killed, stopped, fed with random stacks and a file that holds it up; and
// the probe fed with what a worker that was taken over might answer. Damaged files: tests/fuzz and
// tests/root/test_hostile_files.py.
#include <dirent.h>
#include <fcntl.h>
#include <lzma.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/privileges.h"
#include "check.h"
#include "elf_image.h"
#include "inputs.h"
#include "target_process.h"
#include "unwind/worker.h"
#include "unwind/worker_job.h"
#include "unwind/worker_result.h"

#define CODE UINT64_C(0x550000000000)
#define STACK UINT64_C(0x7f0000000000)
#define STACK_SIZE 4096

static struct stall_arena arena;

static struct stall_worker *make_worker(unsigned int deadline_ms)
{
	struct stall_worker_options options = {.deadline_ms = deadline_ms};
	struct stall_worker *worker = NULL;

	CHECK_OK(stall_worker_create(&arena, &options, &worker));
	return worker;
}

static void set_reg(struct stall_regs *regs, int reg, uint64_t value)
{
	regs->value[reg] = value;
	regs->valid |= 1U << reg;
}

// A process that is not there: one module at CODE (`fd` is taken over), threads with random
// registers and stacks in which addresses of the module are frequent.
static struct stall_snapshot *make_snapshot(int fd, uint64_t module_size, size_t threads)
{
	struct stall_snapshot *snapshot = calloc(1, sizeof(*snapshot));
	struct stall_maps *maps = calloc(1, sizeof(*maps));

	arena.used = 0;
	snapshot->arena = &arena;
	snapshot->backend = "core";
	snapshot->processes = calloc(1, sizeof(*snapshot->processes));
	snapshot->process_count = 1;
	snapshot->processes[0].target = STALL_TARGET_NONE;
	snapshot->processes[0].exe = strdup("/made/up");
	snapshot->processes[0].maps = maps;
	maps->mappings = calloc(1, sizeof(*maps->mappings));
	maps->mapping_count = 1;
	maps->mappings[0] = (struct stall_mapping){.start = CODE,
						   .end = CODE + module_size,
						   .executable = true,
						   .readable = true};
	maps->modules = calloc(1, sizeof(*maps->modules));
	maps->module_count = 1;
	maps->modules[0] = (struct stall_module){.path = strdup("/made/up"),
						 .start = CODE,
						 .end = CODE + module_size,
						 .fd = fd};
	snapshot->threads = calloc(threads, sizeof(*snapshot->threads));
	snapshot->thread_count = threads;
	for (size_t i = 0; i < threads; i++) {
		struct stall_thread *thread = &snapshot->threads[i];

		thread->tid = (pid_t)i + 1;
		for (int reg = 0; reg < STALL_REGS; reg++)
			set_reg(&thread->regs, reg, random_word());
		set_reg(&thread->regs, STALL_REG_PC, CODE + random_word() % module_size);
		set_reg(&thread->regs, STALL_REG_SP, STACK);
		set_reg(&thread->regs, STALL_REG_RBP, STACK + random_word() % STACK_SIZE);
		thread->stack_address = STACK;
		thread->stack_size = STACK_SIZE;
		thread->stack = stall_arena_alloc(&arena, STACK_SIZE);
		for (size_t at = 0; at < STACK_SIZE; at += 8) {
			uint64_t word = random_word() % 4 ? CODE + random_word() % module_size
							  : STACK + random_word() % STACK_SIZE;

			memcpy(thread->stack + at, &word, sizeof(word));
		}
	}
	return snapshot;
}

static size_t no_memory(void *arg, uint32_t process, uint64_t address, void *buf, size_t size)
{
	return 0;
}

// One whose module is this program's file.
static struct stall_snapshot *make_sound_snapshot(size_t threads)
{
	_cleanup_close_ int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	size_t size = (size_t)lseek(fd, 0, SEEK_END);
	_cleanup_free_ uint8_t *bytes = malloc(size);

	CHECK(fd >= 0 && pread(fd, bytes, size, 0) == (ssize_t)size);
	struct stall_snapshot *snapshot = make_snapshot(file_of(bytes, size), size, threads);
	snapshot->memory.read = no_memory;
	return snapshot;
}

// Whatever the input: every index and string is sound.
static void check_sound(const struct stall_snapshot *snapshot, const struct stall_unwound *unwound)
{
	size_t bad = 0;

	CHECK_INT(unwound->stack_count, snapshot->thread_count);
	for (size_t i = 0; i < unwound->stack_count; i++) {
		const struct stall_stack *stack = &unwound->stacks[i];

		bad += stack->count > STALL_MAX_FRAMES || stack->end > STALL_UNWIND_NOT_TRIED;
		for (uint32_t k = 0; k < stack->count; k++)
			bad += stack->frames[k] >= unwound->frame_count;
	}
	for (size_t i = 0; i < unwound->frame_count; i++) {
		const struct stall_frame *frame = &unwound->frames[i];

		bad += frame->process >= snapshot->process_count;
		bad += frame->module != STALL_NO_MODULE &&
		       frame->module >= snapshot->processes[0].maps->module_count;
		bad += frame->symbol && strlen(frame->symbol) > 8192;
		bad += frame->linkage && strlen(frame->linkage) > 8192;
	}
	for (size_t i = 0; i < unwound->module_count; i++) {
		const struct stall_module_info *info = &unwound->modules[i];

		bad += info->process >= snapshot->process_count || !info->symbols || !info->cfi;
		bad += strspn(info->build_id, "0123456789abcdef") != strlen(info->build_id);
	}
	CHECK_INT(bad, 0);
}

static bool status_has(pid_t pid, const char *line)
{
	char path[64], text[8192] = "";

	snprintf(path, sizeof(path), "/proc/%d/status", pid);
	_cleanup_fclose_ FILE *file = fopen(path, "re");
	CHECK(file && fread(text, 1, sizeof(text) - 1, file) > 0);
	return strstr(text, line);
}

static size_t count_fds(pid_t pid)
{
	char path[64];
	size_t count = 0;

	snprintf(path, sizeof(path), "/proc/%d/fd", pid);
	DIR *dir = opendir(path);
	CHECK(dir);
	for (struct dirent *entry; dir && (entry = readdir(dir));)
		count += entry->d_name[0] != '.';
	if (dir)
		closedir(dir);
	return count;
}

// Its user and capabilities: tests/root/test_privileges.py.
static void test_privileges(void)
{
	int secret = open("/etc/hostname", O_RDONLY); // not close-on-exec: the child must close it
	struct stall_worker *worker = make_worker(1000);
	pid_t child = last_child();

	CHECK(status_has(child, "\nNoNewPrivs:\t1\n"));
	CHECK(status_has(child, "\nSeccomp:\t2\n"));
	if (geteuid() == 0) {
		CHECK(status_has(child, "\nGroups:\t \n"));
		// Standard streams, the socket, /usr/lib/debug.
		CHECK(count_fds(child) <= 5);
	}
	stall_worker_destroy(worker);
	CHECK(kill(child, 0) < 0);
	close(secret);
}

static struct stall_unwound unwind(struct stall_worker *worker, struct stall_snapshot *snapshot)
{
	struct stall_unwound unwound = {};

	CHECK_OK(stall_worker_unwind(worker, snapshot, &unwound));
	check_sound(snapshot, &unwound);
	return unwound;
}

static const char *error_of(const struct stall_unwound *unwound, uint32_t process)
{
	for (size_t i = 0; i < unwound->module_count; i++) {
		if (unwound->modules[i].process == process)
			return unwound->modules[i].error;
	}
	return "no module";
}

// False: the machine was too slow for the worker's deadline.
static bool unwinds_all(struct stall_worker *worker, struct stall_snapshot *snapshot)
{
	struct stall_unwound unwound = unwind(worker, snapshot);
	bool in_time = !unwound.partial;

	for (uint32_t i = 0; in_time && i < snapshot->process_count; i++)
		CHECK(!error_of(&unwound, i));
	stall_unwound_deinit(&unwound);
	return in_time;
}

// `test` returns whether sound work was done within the deadline. On a busy machine it may need more
// time.
static void check_in_time(bool (*test)(unsigned int deadline_ms), unsigned int deadline_ms)
{
	bool in_time = false;

	for (int tries = 0; !in_time && tries < 8; tries++, deadline_ms *= 2)
		in_time = test(deadline_ms);
	CHECK(in_time);
}

static bool is_mapped(pid_t pid, const void *address)
{
	char path[64], *line = NULL;
	size_t size = 0;
	bool found = false;

	snprintf(path, sizeof(path), "/proc/%d/maps", pid);
	_cleanup_fclose_ FILE *file = fopen(path, "re");
	CHECK(file);
	while (file && !found && getline(&line, &size, file) > 0)
		found = strtoull(line, NULL, 16) == (uintptr_t)address;
	free(line);
	return found;
}

// The stacks that one worker is given are not there for the other.
static void test_memory_of_others(void)
{
	struct stall_worker_options options = {.deadline_ms = 10000};
	struct stall_arena other;
	struct stall_worker *worker = NULL;

	CHECK_OK(stall_arena_init(&other, (size_t)64 << 30));
	CHECK_OK(stall_worker_create(&other, &options, &worker));
	pid_t first = last_child();
	struct stall_worker *second = make_worker(10000);
	if (stall_has_capability(STALL_CAP_SYS_PTRACE)) { // theirs are of another user
		CHECK(is_mapped(first, other.base));
		CHECK(!is_mapped(last_child(), other.base));
		CHECK(is_mapped(last_child(), arena.base));
	}
	struct stall_snapshot *snapshot = make_sound_snapshot(50);
	struct stall_unwound unwound = unwind(second, snapshot);
	CHECK(!unwound.partial);
	CHECK(unwound.modules && !unwound.modules[0].error);
	stall_unwound_deinit(&unwound);
	stall_snapshot_destroy(snapshot);
	stall_worker_destroy(second);
	stall_worker_destroy(worker);
	stall_arena_deinit(&other);
}

static void test_killed(void)
{
	struct stall_worker *worker = make_worker(10000);
	struct stall_snapshot *snapshot = make_sound_snapshot(50);

	kill(last_child(), SIGKILL);
	struct stall_unwound unwound = unwind(worker, snapshot);
	CHECK(!unwound.partial); // another worker did it
	stall_unwound_deinit(&unwound);
	stall_worker_destroy(worker);
	stall_snapshot_destroy(snapshot);
}

// A worker that does not answer: in time there is a result without it, and then a new worker.
static bool test_stopped(unsigned int deadline_ms)
{
	struct stall_worker *worker = make_worker(deadline_ms);
	struct stall_snapshot *snapshot = make_sound_snapshot(50);
	pid_t child = last_child();

	kill(child, SIGSTOP);
	struct stall_unwound unwound = unwind(worker, snapshot);
	CHECK(unwound.partial);
	for (size_t i = 0; i < unwound.stack_count; i++) {
		CHECK_INT(unwound.stacks[i].end, STALL_UNWIND_NOT_TRIED);
		CHECK_INT(unwound.stacks[i].count, 1);
		const struct stall_frame *frame = &unwound.frames[unwound.stacks[i].frames[0]];
		CHECK_INT(frame->pc, snapshot->threads[i].regs.value[STALL_REG_PC]);
		CHECK_INT(frame->module, 0);
	}
	CHECK_INT(unwound.module_count, 1);
	CHECK(unwound.modules[0].error);
	stall_unwound_deinit(&unwound);
	CHECK(last_child() != child);
	bool in_time = unwinds_all(worker, snapshot);
	stall_worker_destroy(worker);
	stall_snapshot_destroy(snapshot);
	return in_time;
}

// 200 MB of zeros in 30 KB of xz: takes longer to unpack than the worker has. Returns its size.
static size_t pack_zeros(uint8_t *packed, size_t capacity)
{
	static uint8_t zeros[1 << 20];
	lzma_stream stream = LZMA_STREAM_INIT;

	CHECK_INT(lzma_easy_encoder(&stream, 0, LZMA_CHECK_NONE), LZMA_OK);
	stream.next_out = packed;
	stream.avail_out = capacity;
	for (int i = 0; i < 200; i++) {
		stream.next_in = zeros;
		stream.avail_in = sizeof(zeros);
		CHECK_INT(lzma_code(&stream, LZMA_RUN), LZMA_OK);
	}
	CHECK_INT(lzma_code(&stream, LZMA_FINISH), LZMA_STREAM_END);
	size_t size = stream.total_out;
	lzma_end(&stream);
	return size;
}

static int make_bomb(void)
{
	static uint8_t packed[1 << 20];
	static size_t packed_size; // packing takes most of a second: once for all tests
	struct elf_image image;

	if (!packed_size)
		packed_size = pack_zeros(packed, sizeof(packed));
	image_init(&image, SHT_DYNSYM);
	image_section(&image, IMAGE_INIT, ".gnu_debugdata", SHT_PROGBITS, 0, 0);
	image.sections[IMAGE_INIT].sh_offset = sizeof(image);
	image.sections[IMAGE_INIT].sh_size = packed_size;
	int fd = file_of(&image, sizeof(image));
	CHECK(write(fd, packed, packed_size) == (ssize_t)packed_size);
	return fd;
}

// A process more, with one module and one thread.
static void add_process(struct stall_snapshot *snapshot, struct stall_snapshot *other)
{
	size_t processes = snapshot->process_count, threads = snapshot->thread_count;

	snapshot->processes =
		reallocarray(snapshot->processes, processes + 1, sizeof(*snapshot->processes));
	snapshot->processes[processes] = other->processes[0];
	snapshot->threads = reallocarray(snapshot->threads, threads + other->thread_count,
					 sizeof(*snapshot->threads));
	for (size_t i = 0; i < other->thread_count; i++) {
		snapshot->threads[threads + i] = other->threads[i];
		snapshot->threads[threads + i].process = (uint32_t)processes;
	}
	snapshot->process_count++;
	snapshot->thread_count += other->thread_count;
	free(other->processes);
	free(other->threads);
	free(other);
}

// Two processes with a file each: that of the second is sound.
static struct stall_snapshot *make_two(struct stall_snapshot *snapshot)
{
	// Its stacks lie where those of the first one do.
	struct stall_snapshot *sound = make_sound_snapshot(20);

	snapshot->memory.read = no_memory;
	snapshot->processes[0].target.pid = 1001;
	sound->processes[0].target.pid = 1002;
	add_process(snapshot, sound);
	return snapshot;
}

static struct stall_protocol_job *find_region(void)
{
	char *line = NULL;
	size_t capacity = 0;
	uint8_t *found = NULL;
	_cleanup_fclose_ FILE *file = fopen("/proc/self/maps", "re");

	while (file && !found && getline(&line, &capacity, file) > 0) {
		unsigned long start, end;

		if (sscanf(line, "%lx-%lx rw-s", &start, &end) == 2 &&
		    end - start == STALL_WORKER_REGION)
			found = (uint8_t *)start;
	}
	free(line);
	CHECK(found);
	return (struct stall_protocol_job *)found;
}

struct takeover {
	volatile struct stall_protocol_job *job;
	pid_t child;
	uint32_t accused; // job module
	bool dies;
};

// What a worker can do that was taken over by the first process: it says that it was busy with a
// file of the second one, and dies, or never answers.
static void *take_over(void *arg)
{
	struct takeover *takeover = arg;

	while (!takeover->job->deadline_ns)
		sched_yield();
	takeover->job->current_module = takeover->accused + 1;
	if (takeover->dies)
		kill(takeover->child, SIGKILL);
	return NULL;
}

static bool test_false_suspect(unsigned int deadline_ms, bool dies)
{
	struct stall_worker *worker = make_worker(deadline_ms);
	struct stall_snapshot *snapshot = make_two(make_sound_snapshot(20));
	volatile struct stall_protocol_job *job = find_region();
	bool in_time = true;

	// A second late answer in a row is what makes a file bad. Each takes the worker's whole time.
	for (int i = 0; in_time && i < (dies ? 3 : 2); i++) {
		// One that is stopped has not done its work before it is taken over.
		struct takeover takeover = {job, last_child(), 1, dies};
		pthread_t thread;

		job->deadline_ns = 0;
		kill(takeover.child, SIGSTOP);
		CHECK_INT(pthread_create(&thread, NULL, take_over, &takeover), 0);
		struct stall_unwound unwound = unwind(worker, snapshot);
		pthread_join(thread, NULL);
		CHECK_INT(unwound.partial, !dies);
		stall_unwound_deinit(&unwound);
		// It has ended by now, and all that it reported is forgotten.
		in_time = unwinds_all(worker, snapshot);
	}
	stall_worker_destroy(worker);
	stall_snapshot_destroy(snapshot);
	return in_time;
}

static bool test_silent_suspect(unsigned int deadline_ms)
{
	return test_false_suspect(deadline_ms, false);
}

// What really holds workers up is found among several processes too, and the others keep theirs.
static void test_bad_file_of_one(void)
{
	struct stall_worker *worker = make_worker(200);
	struct stall_snapshot *snapshot = make_two(make_snapshot(make_bomb(), 0x2000, 20));
	bool named = false;

	for (int i = 0; i < 50 && !named; i++) {
		struct stall_unwound unwound = unwind(worker, snapshot);
		const char *error = error_of(&unwound, 0);

		named = !unwound.partial && error && strstr(error, "held up");
		if (named)
			CHECK(!error_of(&unwound, 1));
		stall_unwound_deinit(&unwound);
	}
	CHECK(named);
	stall_worker_destroy(worker);
	stall_snapshot_destroy(snapshot);
}

// A process with many bad files takes no room from others.
static void test_bad_files(void)
{
	struct stall_bad_files bad_files = {};
	struct stall_process hostile = {.target.pid = 1}, other = {.target.pid = 2};
	struct stall_bad_file bad_file = {.owner = stall_bad_file_owner(&other), .key.ino = 7};

	CHECK(!stall_bad_files_has(NULL, &other, &bad_file.key));
	stall_bad_files_add(&bad_files, &bad_file);
	CHECK(stall_bad_files_has(&bad_files, &other, &bad_file.key));
	CHECK(!stall_bad_files_has(&bad_files, &hostile, &bad_file.key));
	bad_file.owner = stall_bad_file_owner(&hostile);
	for (uint64_t i = 100; i < 300; i++) {
		bad_file.key.ino = i;
		stall_bad_files_add(&bad_files, &bad_file);
		CHECK(stall_bad_files_has(&bad_files, &hostile, &bad_file.key));
	}
	CHECK_INT(bad_files.count, 1 + STALL_MAX_BAD_FILES_OF_PROCESS);
	bad_file.key.ino = 299 - STALL_MAX_BAD_FILES_OF_PROCESS;
	CHECK(!stall_bad_files_has(&bad_files, &hostile, &bad_file.key));
	bad_file.key.ino = 7;
	CHECK(stall_bad_files_has(&bad_files, &other, &bad_file.key));
	// Another process with the same number is another one.
	other.target.start_time = 5;
	CHECK(!stall_bad_files_has(&bad_files, &other, &bad_file.key));
	for (int pid = 10; pid < 10 + 2 * STALL_MAX_BAD_FILES; pid++) {
		hostile.target.pid = pid;
		bad_file.owner = stall_bad_file_owner(&hostile);
		stall_bad_files_add(&bad_files, &bad_file);
		CHECK(stall_bad_files_has(&bad_files, &hostile, &bad_file.key));
	}
	CHECK_INT(bad_files.count, STALL_MAX_BAD_FILES);
}

// A result of random bytes, as a worker could write that was taken over.
static void test_hostile_results(int rounds)
{
	size_t size = (size_t)8 << 20;
	uint8_t *region =
		mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct stall_snapshot *snapshot = make_snapshot(-1, 0x10000, 200);
	size_t named = 0;

	for (int round = 0; round < rounds; round++) {
		struct stall_job_layout layout = {.region = region,
						  .size = size,
						  .snapshot = snapshot,
						  .only = STALL_ALL_PROCESSES};
		struct stall_protocol_job *job = (struct stall_protocol_job *)region;
		struct stall_unwound unwound = {};

		CHECK_OK(stall_job_fill(&layout, STALL_PROTOCOL_UNWIND, NULL));
		CHECK_OK(stall_job_fill_threads(&layout));
		CHECK_OK(stall_job_finish(&layout, 0));
		uint64_t *words = (uint64_t *)(region + layout.job.stacks);
		// All are random from the first round on; later rounds change some of them.
		for (size_t i = 0; i < (round ? 5000 : 100000); i++)
			words[round ? random_word() % 100000 : i] =
				random_word() >> random_word() % 64;
		for (size_t i = 0; i < 1000; i++) {
			words = (uint64_t *)(region + layout.job.frames);
			words[i] = random_word() >> random_word() % 64;
			words = (uint64_t *)(region + layout.job.strings);
			words[i] = random_word();
		}
		uint32_t *indexes = (uint32_t *)(region + layout.job.indexes);
		for (size_t i = 0; i < 1000; i++)
			indexes[i] = (uint32_t)(random_word() % 20);
		job->frame_count = random_word() >> random_word() % 64;
		job->index_count = random_word() >> random_word() % 64;
		job->string_bytes = random_word() >> random_word() % 64;
		job->thread_count = job->module_count = job->process_count = UINT32_MAX;
		job->stacks = job->frames = job->strings = job->infos = UINT64_MAX;
		CHECK_OK(stall_result_read(&layout, &unwound));
		check_sound(snapshot, &unwound);
		for (size_t i = 0; i < unwound.frame_count; i++)
			named += unwound.frames[i].symbol != NULL;
		stall_unwound_deinit(&unwound);
		stall_job_deinit(&layout);
	}
	CHECK(named > 0);
	munmap(region, size);
	stall_snapshot_destroy(snapshot);
}

int main(int argc, char **argv)
{
	random_state = check_seed(argc, argv);
	CHECK_OK(stall_arena_init(&arena, (size_t)256 << 20));
	test_privileges();
	test_memory_of_others();
	test_killed();
	check_in_time(test_stopped, 300);
	test_bad_file_of_one();
	test_bad_files();
	CHECK(test_false_suspect(20000, true));
	check_in_time(test_silent_suspect, 500);
	test_hostile_results(argc > 1 ? 1000 : 20);
	stall_arena_deinit(&arena);
	return check_done();
}
