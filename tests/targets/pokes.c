// SPDX-License-Identifier: Apache-2.0
// pokes [FILE]: words of memory that a test changes from outside, and a file that it has open, to
// which it writes aligned blocks. Commands: "read" prints the words; "set N" stores N in the first
// one; "write" writes a block to the file; "again" executes this program again.
#include "target.h"

#include <sys/mman.h>

#define BLOCK 512

// Of one byte, at an odd address: no word of two bytes may begin there.
struct words {
	uint64_t word;
	uint32_t half;
	uint8_t byte, odd;
};

volatile struct words words;
static volatile uint64_t *constant, *shared;
static char *program;
static char *argument;
static int file = -1;

static void say(const char *symbol, volatile const void *address)
{
	printf("{\"fact\": \"word\", \"symbol\": \"%s\", \"address\": \"%p\"}\n", symbol,
	       (void *)(uintptr_t)address);
}

static void answer_write(void)
{
	static char block[BLOCK] __attribute__((aligned(BLOCK)));
	static off_t at;
	ssize_t written = pwrite(file, block, BLOCK, at * BLOCK);

	at = (at + 1) % 64;
	printf("{\"written\": %zd, \"errno\": %d, \"direct\": %d}\n", written,
	       written < 0 ? errno : 0, (fcntl(file, F_GETFL) & O_DIRECT) != 0);
}

static void answer(const char *command)
{
	char *again[] = {program, argument, NULL};

	if (!strncmp(command, "set ", 4))
		words.word = strtoull(command + 4, NULL, 10);
	if (!strcmp(command, "again")) {
		execv("/proc/self/exe", again);
		target_die("execv");
	}
	if (!strcmp(command, "write")) {
		answer_write();
		return;
	}
	printf("{\"word\": %lu, \"half\": %u, \"byte\": %u, \"shared\": %lu, \"constant\": %lu}\n",
	       words.word, words.half, words.byte, *shared, *constant);
}

int main(int argc, char **argv)
{
	program = argv[0];
	argument = argc > 1 ? argv[1] : NULL;
	if (argument)
		file = open(argument, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (argument && file < 0)
		target_die(argument);
	shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (shared == MAP_FAILED)
		target_die("mmap");
	constant = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (constant == MAP_FAILED)
		target_die("mmap");
	say("word", &words.word);
	say("half", &words.half);
	say("byte", &words.byte);
	say("odd", &words.odd);
	say("shared", shared);
	say("constant", constant);
	printf("{\"fact\": \"file\", \"count\": %d}\n", file < 0 ? 0 : file);
	target_ready();
	target_serve(answer);
}
