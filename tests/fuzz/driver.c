// SPDX-License-Identifier: Apache-2.0
// fuzz-NAME [--seed N] [--seconds N] FILE...: runs each file unchanged, then damaged copies for N
// seconds of CPU time, where there is no libFuzzer. An input that crashes, or takes too much time
// or memory, is written to a file, and its seed and round are printed. `fuzz-NAME --seconds 0 FILE`
// runs it again, alone.
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
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "inputs.h"

#define CPU_SECONDS 5	 // of one input; most take milliseconds, under sanitizers
#define MEMORY_MB "2048" // of all, of which sanitizers keep some hundreds

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct input {
	uint8_t *data;
	size_t size;
};

static uint64_t seed, rounds;

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
	dprintf(STDERR_FILENO, "seed %" PRIu64 ", round %" PRIu64 ": the input is %s %s\n", seed,
		rounds, saved ? "in" : "lost, no room for", saved_path);
}

static void on_deadline(int number)
{
	dprintf(STDERR_FILENO, "an input took %d s of CPU time\n", CPU_SECONDS);
	abort();
}

static void prepare_death(const char *program)
{
	const char *slash = strrchr(program, '/');
	char folder[PATH_MAX / 2];

	snprintf(saved_path, sizeof(saved_path), "%s/%.200s-%" PRIu64 ".input",
		 getcwd(folder, sizeof(folder)) ? folder : ".", slash ? slash + 1 : program, seed);
	if (__sanitizer_set_death_callback)
		__sanitizer_set_death_callback(on_death);
	signal(SIGPROF, on_deadline);
}

static void run(const struct input *input)
{
	const struct itimerval limit = {.it_value.tv_sec = CPU_SECONDS};

	running = input;
	setitimer(ITIMER_PROF, &limit, NULL);
	LLVMFuzzerTestOneInput(input->data, input->size);
	running = NULL;
}

static struct input load(const char *path)
{
	struct input input = {};
	FILE *file = fopen(path, "re");

	if (!file || fseek(file, 0, SEEK_END) < 0) {
		perror(path);
		exit(2);
	}
	input.size = (size_t)ftell(file);
	input.data = malloc(input.size);
	rewind(file);
	if ((!input.data && input.size) || fread(input.data, 1, input.size, file) != input.size) {
		perror(path);
		exit(2);
	}
	fclose(file);
	return input;
}

// Bytes, words of special values, moved blocks, cut ends: mostly near the ends, where headers are.
static size_t damage(uint8_t *data, size_t size)
{
	static const uint64_t special[] = {0,	    1,	       0x7f,	   0x80,      0xffff,
					   0x10000, INT32_MAX, UINT32_MAX, INT64_MAX, UINT64_MAX};
	uint64_t kind = random_word() % 16, where = random_word();
	size_t at = where % 4 == 0		    ? where / 4 % size
		    : where % 4 == 1 && size > 4096 ? size - 1 - where / 4 % 4096
						    : where / 4 % (size < 4096 ? size : 4096);
	size_t from = random_word() % size, length = random_word() % 256;

	if (kind == 0)
		return random_word() % size + 1;
	if (kind < 9) {
		data[at] = (uint8_t)random_word();
	} else if (kind < 14) {
		uint64_t word = special[random_word() % (sizeof(special) / sizeof(special[0]))];
		size_t width = (size_t)1 << random_word() % 4;

		memcpy(data + at, &word, width < size - at ? width : size - at);
	} else {
		length = length < size - at ? length : size - at;
		length = length < size - from ? length : size - from;
		memmove(data + at, data + from, length);
	}
	return size;
}

static void run_damaged(const struct input *input)
{
	uint8_t *copy = malloc(input->size);
	size_t size = input->size;

	memcpy(copy, input->data, size);
	for (uint64_t i = random_word() % 24; i > 0; i--)
		size = damage(copy, size);
	// In a block of exactly this size a read beyond its end is detected.
	struct input exact = {.data = malloc(size), .size = size};
	memcpy(exact.data, copy, size);
	free(copy);
	run(&exact);
	free(exact.data);
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

int main(int argc, char **argv)
{
	uint64_t seconds = 5;
	struct input inputs[64];
	size_t count = 0;

	seed = (uint64_t)time(NULL) * UINT64_C(0x9e3779b97f4a7c15);
	for (int i = 1; i < argc; i++) {
		if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc)
			seed = strtoull(argv[++i], NULL, 0);
		else if (strcmp(argv[i], "--seconds") == 0 && i + 1 < argc)
			seconds = strtoull(argv[++i], NULL, 0);
		else if (count < 64)
			inputs[count++] = load(argv[i]);
	}
	if (!count || !seed) {
		fprintf(stderr, "usage: %s [--seed N] [--seconds N] FILE...\n", argv[0]);
		return 2;
	}
	fprintf(stderr, "seed %" PRIu64 "\n", seed);
	random_state = seed;
	prepare_death(argv[0]);
	for (size_t i = 0; i < count; i++)
		run(&inputs[i]);
	while (seconds_used() < (double)seconds) {
		const struct input *input = &inputs[random_word() % count];

		rounds++;
		if (input->size)
			run_damaged(input);
	}
	for (size_t i = 0; i < count; i++)
		free(inputs[i].data);
	printf("%" PRIu64 " rounds\n", rounds);
	return rounds || !seconds ? 0 : 1;
}
