// SPDX-License-Identifier: Apache-2.0
// fuzz-NAME [--seed N] [--seconds N] FILE...: runs each file as it is, then damaged copies of them,
// where there is no libFuzzer. The seed and the round of a crash are printed by the crash itself:
// run again with that seed.
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct input {
	uint8_t *data;
	size_t size;
};

static uint64_t random_state;

// xorshift64*
static uint64_t random_word(void)
{
	random_state ^= random_state >> 12;
	random_state ^= random_state << 25;
	random_state ^= random_state >> 27;
	return random_state * UINT64_C(0x2545f4914f6cdd1d);
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
	input.data = malloc(input.size + 1);
	rewind(file);
	if (!input.data || fread(input.data, 1, input.size, file) != input.size) {
		perror(path);
		exit(2);
	}
	fclose(file);
	return input;
}

// Bytes, words of telling values, moved blocks, cut ends: mostly near the ends, where headers are.
static size_t damage(uint8_t *data, size_t size)
{
	static const uint64_t telling[] = {0,	    1,	       0x7f,	   0x80,      0xffff,
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
		uint64_t word = telling[random_word() % (sizeof(telling) / sizeof(telling[0]))];
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
	// In a block of exactly that size a read beyond it is seen.
	uint8_t *exact = malloc(size);
	memcpy(exact, copy, size);
	free(copy);
	LLVMFuzzerTestOneInput(exact, size);
	free(exact);
}

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

int main(int argc, char **argv)
{
	uint64_t seconds = 5, rounds = 0, started = now_ns();
	struct input inputs[64];
	size_t count = 0;

	random_state = (uint64_t)time(NULL) * UINT64_C(0x9e3779b97f4a7c15);
	for (int i = 1; i < argc; i++) {
		if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc)
			random_state = strtoull(argv[++i], NULL, 0);
		else if (strcmp(argv[i], "--seconds") == 0 && i + 1 < argc)
			seconds = strtoull(argv[++i], NULL, 0);
		else if (count < 64)
			inputs[count++] = load(argv[i]);
	}
	if (!count || !random_state) {
		fprintf(stderr, "usage: %s [--seed N] [--seconds N] FILE...\n", argv[0]);
		return 2;
	}
	// Unbuffered: what was printed last names the round that crashed.
	fprintf(stderr, "seed %" PRIu64 "\n", random_state);
	for (size_t i = 0; i < count; i++)
		LLVMFuzzerTestOneInput(inputs[i].data, inputs[i].size);
	while (now_ns() - started < seconds * 1000000000) {
		const struct input *input = &inputs[random_word() % count];

		if (input->size)
			run_damaged(input);
		rounds++;
	}
	for (size_t i = 0; i < count; i++)
		free(inputs[i].data);
	printf("%" PRIu64 " rounds\n", rounds);
	return rounds ? 0 : 1;
}
