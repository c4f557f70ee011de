// SPDX-License-Identifier: Apache-2.0
// growth: grows by a known number of bytes in a known function for each line "NAME BYTES" on its
// standard input, and answers with a line. "in-thread NAME BYTES" does so in a thread that stays.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define KEPT 64
#define FRAME 4096

static struct {
	char *memory;
	size_t size;
} kept[KEPT];
static int kept_count;

static void keep(void *memory, size_t size)
{
	if (!memory || memory == MAP_FAILED || kept_count == KEPT)
		abort();
	kept[kept_count].memory = memory;
	kept[kept_count++].size = size;
}

static void *map(size_t size, int flags)
{
	return mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
}

static __attribute__((noinline)) void grow_malloc(size_t size)
{
	char *memory = malloc(size);

	memset(memory, 1, size);
	keep(memory, size);
}

// Pieces that are below malloc's limit for mmap.
static __attribute__((noinline)) void grow_pieces(size_t size)
{
	for (size_t done = 0; done < size; done += 1000) {
		char *memory = malloc(1000);
		if (!memory)
			abort();
		memset(memory, 1, 1000);
	}
}

static __attribute__((noinline)) void grow_mmap(size_t size)
{
	char *memory = map(size, 0);

	for (size_t at = 0; at < size; at += 4096)
		memory[at] = 1;
	keep(memory, size);
}

static __attribute__((noinline)) void grow_brk(size_t size)
{
	char *memory = sbrk((intptr_t)size);

	if (memory == (void *)-1)
		abort();
	for (size_t at = 0; at < size; at += 4096)
		memory[at] = 1;
}

static __attribute__((noinline)) size_t grow_stack(size_t size)
{
	volatile char frame[FRAME];

	frame[0] = 1;
	size_t below = size > FRAME ? grow_stack(size - FRAME) : 0;
	return below + frame[0];
}

static __attribute__((noinline)) void grow_huge(size_t size)
{
	size_t huge = 2 << 20;
	char *memory = map(size + huge, 0);
	char *aligned = (char *)(((size_t)memory + huge - 1) / huge * huge);

	madvise(aligned, size, MADV_HUGEPAGE);
	for (size_t at = 0; at < size; at += huge)
		aligned[at] = 1;
	keep(aligned, size);
}

// A system call touches it first.
static __attribute__((noinline)) void grow_read(size_t size)
{
	FILE *zero = fopen("/dev/zero", "r");
	char *memory = map(size, 0);

	if (!zero || read(fileno(zero), memory, size) != (ssize_t)size)
		abort();
	fclose(zero);
	keep(memory, size);
}

static __attribute__((noinline)) void grow_populate(size_t size)
{
	keep(map(size, MAP_POPULATE), size);
}

static __attribute__((noinline)) void grow_hugetlb(size_t size)
{
	char *memory = map(size, MAP_HUGETLB);

	if (memory == MAP_FAILED)
		return;
	for (size_t at = 0; at < size; at += 2 << 20)
		memory[at] = 1;
	keep(memory, size);
}

// Reads map the zero page; it belongs to nobody.
static __attribute__((noinline)) void read_untouched(size_t size)
{
	volatile char *memory = map(size, 0);
	int sum = 0;

	for (size_t at = 0; at < size; at += 4096)
		sum += memory[at];
	keep((void *)memory, size);
	(void)sum;
}

// Gives back the latest that was mapped.
static __attribute__((noinline)) void give_back(size_t size)
{
	if (!kept_count || kept[kept_count - 1].size < size ||
	    madvise(kept[kept_count - 1].memory, size, MADV_DONTNEED))
		abort();
}

static __attribute__((noinline)) void grow_twice(size_t size)
{
	char *memory = map(size, 0);

	for (int i = 0; i < 2; i++) {
		for (size_t at = 0; at < size; at += 4096)
			memory[at] = 1;
		if (!i && madvise(memory, size, MADV_DONTNEED))
			abort();
	}
	keep(memory, size);
}

static void use_stack(size_t size)
{
	if (grow_stack(size) == 0)
		abort();
}

// So many places that could be heaps of malloc's threads. Each leads to what looks like a list of
// arenas without an end.
static void make_arenas(size_t count)
{
	const size_t distance = 64 << 20, page = 4096;
	size_t size = (count + 1) * distance;
	char *arenas = map(2 * page, 0),
	     *memory = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
			    0);
	char *heap = (char *)(((size_t)memory + distance - 1) / distance * distance);
	char *next = arenas + page;

	keep(memory, size);
	keep(arenas, 2 * page);
	for (size_t at = 2048; at < page; at += sizeof(next)) {
		memcpy(arenas + at, &next, sizeof(next));
		memcpy(arenas + page + at, &next, sizeof(next));
	}
	for (size_t i = 0; i < count; i++, heap += distance) {
		if (mprotect(heap, page, PROT_READ | PROT_WRITE))
			abort();
		memcpy(heap, &arenas, sizeof(arenas));
	}
}

static const struct {
	const char *name;
	void (*run)(size_t size);
} actions[] = {
	{"malloc", grow_malloc},   {"pieces", grow_pieces},
	{"mmap", grow_mmap},	   {"brk", grow_brk},
	{"stack", use_stack},	   {"huge", grow_huge},
	{"read", grow_read},	   {"populate", grow_populate},
	{"hugetlb", grow_hugetlb}, {"untouched", read_untouched},
	{"back", give_back},	   {"twice", grow_twice},
	{"arenas", make_arenas},
};

struct job {
	void (*run)(size_t size);
	size_t size;
	int done;
};

static void *in_thread(void *arg)
{
	struct job *job = arg;

	job->run(job->size);
	__atomic_store_n(&job->done, 1, __ATOMIC_RELEASE);
	for (;;)
		pause();
	return NULL;
}

static void start(struct job *job)
{
	pthread_attr_t attributes;
	pthread_t thread;

	pthread_attr_init(&attributes);
	pthread_attr_setstacksize(&attributes, 64 << 20);
	if (pthread_create(&thread, &attributes, in_thread, job))
		abort();
	while (!__atomic_load_n(&job->done, __ATOMIC_ACQUIRE))
		usleep(100);
}

int main(void)
{
	char line[256], name[64];
	static struct job jobs[KEPT];
	int job_count = 0;

	setvbuf(stdout, NULL, _IONBF, 0);
	puts("ready");
	while (fgets(line, sizeof(line), stdin)) {
		const char *rest = line;
		int is_thread = !strncmp(line, "in-thread ", 10);
		size_t size, i;

		if (is_thread)
			rest += 10;
		if (sscanf(rest, "%63s %zu", name, &size) != 2)
			return 2;
		for (i = 0; i < sizeof(actions) / sizeof(actions[0]); i++)
			if (!strcmp(actions[i].name, name))
				break;
		if (i == sizeof(actions) / sizeof(actions[0]) || job_count == KEPT)
			return 2;
		jobs[job_count] = (struct job){actions[i].run, size, 0};
		if (is_thread)
			start(&jobs[job_count++]);
		else
			actions[i].run(size);
		puts("{\"done\":1}");
	}
	return 0;
}
