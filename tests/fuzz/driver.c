// SPDX-License-Identifier: Apache-2.0
// fuzz-NAME [--seed N] [--seconds N] [--keep FOLDER] FILE...: runs each file unchanged, then damaged
// copies for N seconds of CPU time. An input that crashes, or takes too much time or memory, is
// written to a file, and its seed and round are printed. `fuzz-NAME --seconds 0 FILE` runs it again,
// alone. Where the libraries were built with -Dfuzz=true, an input that reaches new code is damaged
// further, and written to FOLDER. `fuzz-NAME --minimise [--given FILE]... FILE...` removes files that
// reach nothing which smaller ones, and those given, do not. A FILE may be a folder of them.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "base/array.h"
#include "coverage.h"
#include "fuzz.h"
#include "inputs.h"

#define CPU_SECONDS 5	   // of one input; most take milliseconds, under sanitizers
#define MEMORY_MB "2048"   // of all, of which sanitizers keep some hundreds
#define LONGEST (2U << 20) // of what is damaged

struct input {
	uint8_t *data;
	size_t size;
	char *path; // NULL: found by this run
};

static struct input *inputs;
static size_t input_count, input_capacity;
static uint64_t seed, executions;
static const char *folder; // for inputs that reach new code

// The current input, and the file for it if it crashes.
static const struct input *running;
static char saved_path[PATH_MAX];

// Of the sanitizers; the first is not there where the compiler has none.
void __sanitizer_set_death_callback(void (*callback)(void)) __attribute__((weak));
const char *__asan_default_options(void);
const char *__ubsan_default_options(void);

// Every crash ends in AddressSanitizer, which prints the stack: an abort() too, and what
// UndefinedBehaviorSanitizer finds.
const char *__asan_default_options(void)
{
	return "handle_abort=1:hard_rss_limit_mb=" MEMORY_MB;
}

const char *__ubsan_default_options(void)
{
	return "halt_on_error=1:abort_on_error=1";
}

// Takes no memory: the heap may be what is broken.
static void on_death(void)
{
	const struct input *input = running;

	if (!input)
		return;
	running = NULL;
	int fd = open(saved_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	bool saved = fd >= 0 && write(fd, input->data, input->size) == (ssize_t)input->size;
	dprintf(STDERR_FILENO, "seed %" PRIu64 ", execution %" PRIu64 ": the input is %s %s\n",
		seed, executions, saved ? "in" : "lost, no room for", saved_path);
}

static void on_deadline(int number)
{
	dprintf(STDERR_FILENO, "an input took %d s of CPU time\n", CPU_SECONDS);
	abort();
}

static void prepare_death(const char *program)
{
	const char *slash = strrchr(program, '/');
	char current[PATH_MAX / 2];

	snprintf(saved_path, sizeof(saved_path), "%s/%.200s-%" PRIu64 ".input",
		 getcwd(current, sizeof(current)) ? current : ".", slash ? slash + 1 : program,
		 seed);
	if (__sanitizer_set_death_callback)
		__sanitizer_set_death_callback(on_death);
	signal(SIGPROF, on_deadline);
}

// Whether it reached code that no input before it did.
static bool run(const struct input *input)
{
	const struct itimerval limit = {.it_value.tv_sec = CPU_SECONDS};

	running = input;
	executions++;
	setitimer(ITIMER_PROF, &limit, NULL);
	LLVMFuzzerTestOneInput(input->data, input->size);
	running = NULL;
	return coverage_grew();
}

static void fail(const char *path)
{
	perror(path);
	exit(2);
}

static void add_input(uint8_t *data, size_t size, char *path)
{
	if (!stall_array_reserve(&inputs, input_count, 1, &input_capacity))
		fail("inputs");
	inputs[input_count++] = (struct input){data, size, path};
}

static void load_file(const char *path, size_t size)
{
	FILE *file = fopen(path, "re");
	uint8_t *data = malloc(size + !size);
	char *copy = strdup(path);

	if (!file || !data || !copy || fread(data, 1, size, file) != size)
		fail(path);
	fclose(file);
	add_input(data, size, copy);
}

static void load(const char *path)
{
	struct dirent **names;
	struct stat st;
	int count;

	if (stat(path, &st) < 0)
		fail(path);
	if (!S_ISDIR(st.st_mode)) {
		load_file(path, (size_t)st.st_size);
		return;
	}
	// By name: a seed repeats a run.
	count = scandir(path, &names, NULL, alphasort);
	for (int i = 0; i < count; i++) {
		char inner[PATH_MAX];

		snprintf(inner, sizeof(inner), "%s/%s", path, names[i]->d_name);
		if (names[i]->d_name[0] != '.')
			load(inner);
		free(names[i]);
	}
	free(names);
}

// Another process may share the folder: a file has its name only when it is whole.
static void keep(const struct input *input)
{
	char path[PATH_MAX], unfinished[PATH_MAX];
	uint64_t hash = UINT64_C(0xcbf29ce484222325); // FNV-1a

	for (size_t i = 0; i < input->size; i++)
		hash = (hash ^ input->data[i]) * UINT64_C(0x100000001b3);
	snprintf(path, sizeof(path), "%s/%016" PRIx64, folder, hash);
	snprintf(unfinished, sizeof(unfinished), "%s/.%016" PRIx64 ".%d", folder, hash, getpid());
	FILE *file = fopen(unfinished, "we");
	if (!file || fwrite(input->data, 1, input->size, file) != input->size || fclose(file) ||
	    rename(unfinished, path))
		fail(unfinished);
}

// Where something is changed: mostly near the ends, where headers are.
static size_t place(size_t size)
{
	uint64_t where = random_word() % 4, at = random_word();

	if (where == 0)
		return at % size;
	if (where == 1 && size > 4096)
		return size - 1 - at % 4096;
	return at % (size < 4096 ? size : 4096);
}

static size_t at_most(size_t value, size_t limit)
{
	return value < limit ? value : limit;
}

// Puts another number in the place of the next one that is written in digits.
static size_t damage_digits(uint8_t *data, size_t size, size_t at)
{
	char text[24];
	size_t length = (size_t)snprintf(text, sizeof(text), "%" PRIu64,
					 random_word() % 4 ? random_word() % 70000
							   : random_word() >> random_word() % 64);

	while (at < size && (data[at] < '0' || data[at] > '9'))
		at++;
	size_t end = at;
	while (end < size && data[end] >= '0' && data[end] <= '9')
		end++;
	if (at == end || size - (end - at) + length > LONGEST)
		return size;
	memmove(data + at + length, data + end, size - end);
	memcpy(data + at, text, length);
	return size - (end - at) + length;
}

// Bytes, words of special values, other numbers, moved and inserted blocks, parts of another input, cut
// ends. `data` has room for LONGEST.
static size_t damage(uint8_t *data, size_t size)
{
	static const uint64_t special[] = {0,	    1,	       0x7f,	   0x80,      0xffff,
					   0x10000, INT32_MAX, UINT32_MAX, INT64_MAX, UINT64_MAX};
	uint64_t kind = random_word() % 22;
	size_t at = place(size), from = random_word() % size, length = random_word() % 256;

	if (kind == 0)
		return random_word() % size + 1;
	if (kind < 9) {
		data[at] = (uint8_t)random_word();
	} else if (kind < 14) {
		uint64_t word = special[random_word() % (sizeof(special) / sizeof(special[0]))];
		size_t width = (size_t)1 << random_word() % 4;

		memcpy(data + at, &word, at_most(width, size - at));
	} else if (kind < 16) {
		memmove(data + at, data + from, at_most(length, size - (at > from ? at : from)));
	} else if (kind < 18) {
		const struct input *other = &inputs[random_word() % input_count];
		size_t start = other->size ? place(other->size) : 0;

		memcpy(data + at, other->data + start,
		       at_most(at_most(length, size - at), other->size - start));
	} else if (kind >= 20) {
		size = damage_digits(data, size, at);
	} else if (kind == 18) {
		length = at_most(length, LONGEST - size);
		memmove(data + at + length, data + at, size - at);
		size += length;
	} else {
		length = at_most(length, size - 1 - at);
		memmove(data + at, data + at + length, size - at - length);
		size -= length;
	}
	return size;
}

static void run_damaged(const struct input *input)
{
	static uint8_t copy[LONGEST];
	size_t size = input->size;

	memcpy(copy, input->data, size);
	for (uint64_t i = random_word() % 24; i > 0; i--)
		size = damage(copy, size);
	// In a block of exactly this size a read beyond its end is detected.
	struct input exact = {.data = malloc(size), .size = size};
	if (!exact.data)
		fail("inputs");
	memcpy(exact.data, copy, size);
	if (!run(&exact)) {
		free(exact.data);
		return;
	}
	add_input(exact.data, exact.size, NULL);
	if (folder)
		keep(&exact);
}

// Counts CPU time, including children: a busy machine tries as much as an idle one.
static double seconds_used(void)
{
	double used = 0;

	for (int who = RUSAGE_CHILDREN; who <= RUSAGE_SELF; who++) {
		struct rusage usage;

		getrusage(who, &usage);
		used += (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
			(double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
	}
	return used;
}

static int compare_sizes(const void *a, const void *b)
{
	const struct input *one = a, *other = b;

	return (one->size > other->size) - (one->size < other->size);
}

// The first `given` inputs stay.
static void minimise(size_t given)
{
	size_t kept = 0;

	for (size_t i = 0; i < given; i++)
		run(&inputs[i]);
	qsort(inputs + given, input_count - given, sizeof(*inputs), compare_sizes);
	for (size_t i = given; i < input_count; i++) {
		if (run(&inputs[i]))
			kept++;
		else if (coverage_size() && unlink(inputs[i].path) < 0)
			fail(inputs[i].path);
	}
	if (!coverage_size()) {
		fprintf(stderr, "the libraries were built without -Dfuzz=true\n");
		exit(2);
	}
	printf("%zu of %zu inputs kept\n", kept, input_count - given);
}

static void fuzz(double seconds)
{
	for (size_t i = 0, given = input_count; i < given; i++)
		run(&inputs[i]);
	while (seconds_used() < seconds) {
		const struct input input = inputs[random_word() % input_count];

		if (input.size && input.size <= LONGEST)
			run_damaged(&input);
	}
	printf("%" PRIu64 " executions, %zu places, %zu inputs\n", executions, coverage_size(),
	       input_count);
}

int main(int argc, char **argv)
{
	bool is_minimising = false;
	size_t given = 0;
	double seconds = 5;

	seed = (uint64_t)time(NULL) * UINT64_C(0x9e3779b97f4a7c15);
	for (int i = 1; i < argc; i++) {
		if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc)
			seed = strtoull(argv[++i], NULL, 0);
		else if (strcmp(argv[i], "--seconds") == 0 && i + 1 < argc)
			seconds = strtod(argv[++i], NULL);
		else if (strcmp(argv[i], "--keep") == 0 && i + 1 < argc)
			folder = argv[++i];
		else if (strcmp(argv[i], "--minimise") == 0)
			is_minimising = true;
		else if (strcmp(argv[i], "--given") == 0 && i + 1 < argc) {
			load(argv[++i]);
			given = input_count;
		} else
			load(argv[i]);
	}
	if (!input_count || !seed) {
		fprintf(stderr,
			"usage: %s [--seed N] [--seconds N] [--keep FOLDER] [--minimise] FILE...\n",
			argv[0]);
		return 2;
	}
	fprintf(stderr, "seed %" PRIu64 "\n", seed);
	random_state = seed;
	prepare_death(argv[0]);
	if (is_minimising)
		minimise(given);
	else
		fuzz(seconds);
	for (size_t i = 0; i < input_count; i++) {
		free(inputs[i].data);
		free(inputs[i].path);
	}
	free(inputs);
	return 0;
}
