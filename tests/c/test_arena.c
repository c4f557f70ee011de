// SPDX-License-Identifier: Apache-2.0
#include "base/arena.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

#define PAGE 4096UL

static void test_bounds(void)
{
	struct stall_arena arena;

	CHECK_OK(stall_arena_init(&arena, 10 * PAGE));
	uint8_t *a = stall_arena_alloc(&arena, 1);
	uint8_t *b = stall_arena_alloc(&arena, PAGE);
	CHECK(a == arena.base);
	CHECK(b == a + 16);
	CHECK(!stall_arena_alloc(&arena, 10 * PAGE));
	CHECK(!stall_arena_alloc(&arena, SIZE_MAX));
	CHECK(!stall_arena_alloc(&arena, SIZE_MAX - 32));
	size_t rest = arena.size - 16 - PAGE;
	CHECK(stall_arena_alloc(&arena, rest));
	CHECK_INT(arena.used, arena.size);
	CHECK(!stall_arena_alloc(&arena, 1));
	stall_arena_deinit(&arena);
	CHECK(!arena.base);
	stall_arena_deinit(&arena);
}

static size_t resident_pages(const struct stall_arena *arena)
{
	unsigned char pages[1024];
	size_t count = 0;

	if (arena->size / PAGE > sizeof(pages) || mincore(arena->base, arena->size, pages) < 0)
		return SIZE_MAX;
	for (size_t i = 0; i < arena->size / PAGE; i++)
		count += pages[i] & 1;
	return count;
}

static void test_gives_pages_back(void)
{
	struct stall_arena arena;

	CHECK_OK(stall_arena_init(&arena, 100 * PAGE));
	CHECK_INT(resident_pages(&arena), 0);
	memset(stall_arena_alloc(&arena, 50 * PAGE), 1, 50 * PAGE);
	CHECK_INT(resident_pages(&arena), 50);
	stall_arena_reset(&arena, 60 * PAGE);
	CHECK_INT(resident_pages(&arena), 50);
	stall_arena_reset(&arena, 20 * PAGE - 1);
	CHECK_INT(resident_pages(&arena), 20);
	CHECK_INT(arena.used, 0);
	CHECK(stall_arena_alloc(&arena, PAGE) == arena.base);
	stall_arena_deinit(&arena);
}

static void test_shared_with_child(void)
{
	struct stall_arena arena;
	int status;

	CHECK_OK(stall_arena_init(&arena, 10 * PAGE));
	pid_t child = fork();
	if (child == 0) {
		arena.base[5 * PAGE] = 42;
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	CHECK_INT(arena.base[5 * PAGE], 42);
	stall_arena_deinit(&arena);
}

int main(void)
{
	test_bounds();
	test_gives_pages_back();
	test_shared_with_child();
	return check_done();
}
