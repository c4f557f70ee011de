// SPDX-License-Identifier: Apache-2.0
// garbage SEED: threads asleep in pause(2) whose stack pointer points at nonsense, and one that is
// sound. A random frame pointer and random saved registers come with it.
#include "levels.h"
#include "waits.h"

#include <limits.h>
#include <sys/mman.h>

#define GARBAGE_SIZE (1u << 20)

static uint64_t seed;

// splitmix64
static uint64_t garbage_random(void)
{
	uint64_t z = seed += 0x9e3779b97f4a7c15u;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

struct nonsense {
	const char *name;
	uintptr_t sp;
	uint64_t regs[6]; // rbx, rbp, r12 to r15
	int tid;
};

// Never returns: from the first instruction on nothing of this thread's stack is left.
static NOIPA void __attribute__((noreturn)) garbage_pause(const struct nonsense *nonsense)
{
	__asm__ volatile("mov 0(%1), %%rbx\n\t"
			 "mov 16(%1), %%r12\n\t"
			 "mov 24(%1), %%r13\n\t"
			 "mov 32(%1), %%r14\n\t"
			 "mov 40(%1), %%r15\n\t"
			 "mov 8(%1), %%rbp\n\t"
			 "mov %0, %%rsp\n"
			 "1:\n\t"
			 "mov $34, %%eax\n\t" // SYS_pause
			 "syscall\n\t"
			 "jmp 1b"
			 :
			 : "r"(nonsense->sp), "r"(nonsense->regs)
			 : "rax", "rcx", "r11", "memory");
	__builtin_unreachable();
}

static NOIPA void *garbage_thread(void *arg)
{
	struct nonsense *nonsense = arg;
	sigset_t all;

	// A signal would be delivered onto the nonsense.
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, NULL);
	pthread_setname_np(pthread_self(), nonsense->name);
	__atomic_store_n(&nonsense->tid, gettid(), __ATOMIC_RELEASE);
	garbage_pause(nonsense);
}

static NOIPA void *sound_thread(void *arg)
{
	__atomic_store_n((int *)arg, gettid(), __ATOMIC_RELEASE);
	levels_descend(6, wait_pause, NULL);
	return NULL;
}

static uint64_t *garbage_map(size_t size, int prot)
{
	uint64_t *map = mmap(NULL, size, prot, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (map == MAP_FAILED)
		target_die("mmap");
	return map;
}

int main(int argc, char **argv)
{
	size_t words = GARBAGE_SIZE / sizeof(uint64_t);
	uint64_t *bytes = garbage_map(GARBAGE_SIZE, PROT_READ | PROT_WRITE);
	uint64_t *code = garbage_map(GARBAGE_SIZE, PROT_READ | PROT_WRITE);
	uint64_t *self = garbage_map(GARBAGE_SIZE, PROT_READ | PROT_WRITE);
	uint64_t *hole = garbage_map(GARBAGE_SIZE, PROT_READ | PROT_WRITE);
	struct nonsense kinds[] = {
		{.name = "random", .sp = (uintptr_t)(bytes + words / 2)},
		{.name = "code", .sp = (uintptr_t)(code + words / 2)},
		{.name = "self", .sp = (uintptr_t)(self + words / 2)},
		{.name = "odd", .sp = (uintptr_t)(bytes + words / 4) + 3},
		{.name = "last-byte", .sp = (uintptr_t)(bytes + words) - 1},
		{.name = "hole", .sp = (uintptr_t)(hole + words / 2) - 64},
		{.name = "forbidden", .sp = (uintptr_t)garbage_map(4096, PROT_NONE) + 8},
		{.name = "huge",
		 .sp = (uintptr_t)garbage_map(64ul << 30, PROT_READ | PROT_WRITE) + 4096},
		{.name = "null", .sp = 0},
		{.name = "top", .sp = UINTPTR_MAX - 7},
		{.name = "non-canonical", .sp = 0x8000000000000000u},
		{.name = "text", .sp = (uintptr_t)garbage_pause},
	};
	int count = sizeof(kinds) / sizeof(kinds[0]), sound = 0;

	seed = argc > 1 ? strtoull(argv[1], NULL, 0) : target_now();
	printf("{\"fact\":\"seed\",\"seed\":%llu}\n", (unsigned long long)seed);
	for (size_t i = 0; i < words; i++) {
		bytes[i] = garbage_random();
		// Return addresses all over this program's text, and frame addresses.
		code[i] = i % 3 ? (uintptr_t)main + garbage_random() % 4096 - 2048
				: (uintptr_t)(code + garbage_random() % words);
		self[i] = (uintptr_t)(self + i);
	}
	// A return address of 0 would be an end, and what follows this byte may be zeroes.
	bytes[words - 1] |= 1ull << 56;
	munmap((char *)hole + GARBAGE_SIZE / 2, 4096);
	for (int i = 0; i < count; i++) {
		for (int reg = 0; reg < 6; reg++)
			kinds[i].regs[reg] = reg % 2 ? garbage_random()
						     : (uintptr_t)(code + garbage_random() % words);
		pthread_detach(target_thread(garbage_thread, &kinds[i], 65536));
	}
	pthread_detach(target_thread(sound_thread, &sound, 65536));
	levels_print(6);
	for (int i = 0; i < count; i++) {
		target_wait_blocked(target_wait_set(&kinds[i].tid), SYS_pause, 0, 0);
		printf("{\"fact\":\"garbage\",\"tid\":%d,\"kind\":\"%s\",\"sp\":\"0x%lx\"}\n",
		       kinds[i].tid, kinds[i].name, (unsigned long)kinds[i].sp);
	}
	target_wait_blocked(target_wait_set(&sound), SYS_pause, 0, 0);
	printf("{\"fact\":\"thread\",\"tid\":%d,\"wait\":\"pause\",\"syscall\":34,"
	       "\"leaf\":\"wait_pause\",\"depth\":6,\"root\":\"sound_thread\"}\n",
	       sound);
	target_ready();
	target_serve(NULL);
}
