// SPDX-License-Identifier: Apache-2.0
// make-sessions FILE: connections in a server's memory and their layout, for fuzz_sessions.c to damage.
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "sessions_image.h"

static uint8_t memory[IMAGE_MEMORY];

static void put_word(uint64_t at, uint64_t word)
{
	memcpy(memory + at, &word, sizeof(word));
}

static uint64_t put_text(uint64_t at, const char *text)
{
	memcpy(memory + at, text, strlen(text) + 1);
	return IMAGE_BASE + at;
}

static void put_thread(int i)
{
	uint64_t block = IMAGE_BLOCKS * (i + 1), object = 1024 * (i + 1), texts = 8192 + 1024 * i;

	put_word(block - 8, IMAGE_BASE + object);
	put_word(object + 8, IMAGE_BASE + block);
	put_word(object + 16, 1000 + i);
	put_word(object + 24, put_text(texts, "app"));
	put_word(object + 32, put_text(texts + 32, "10.0.0.7"));
	put_word(object + 40, 8);
	put_word(object + 48, put_text(texts + 64, "shop"));
	put_word(object + 56, put_text(texts + 96, "updating"));
	put_word(object + 64, i == 1 ? 0 : put_text(texts + 128, "UPDATE t SET a = 'x'"));
	put_word(object + 72, 20);
	put_word(object + 80, i == 1 ? 0 : 3);
	put_word(object + 88, 3);
	put_word(object + 96, 1700000000000000);
	put_word(object + 104, put_text(texts + 256, "....SELECT 1"));
	put_word(object + 112, IMAGE_BASE + texts);
}

int main(int argc, char **argv)
{
	char layout[IMAGE_LAYOUT] =
		"thd.tls=-8 thd.self=8 thd.id=16 thd.user=24 thd.host=32 thd.host#length=40 "
		"thd.database=48 thd.state=56 thd.query=64 thd.command=80 thd.status=88 "
		"thd.start=96 thd.last=104 thd.last#delta=4 thd.user.2=112";
	FILE *file = argc == 2 ? fopen(argv[1], "we") : NULL;

	for (int i = 0; i < IMAGE_THREADS; i++)
		put_thread(i);
	bool done = file && fwrite(layout, sizeof(layout), 1, file) == 1 &&
		    fwrite(memory, sizeof(memory), 1, file) == 1;
	return file && !fclose(file) && done ? 0 : 1;
}
