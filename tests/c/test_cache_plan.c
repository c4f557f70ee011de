// SPDX-License-Identifier: Apache-2.0
// Which files may leave the page cache: random names and descriptors, and what must hold of each plan.
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cache/cache_plan.h"
#include "check.h"

#define ROUNDS 3000
#define FILES 24
#define NAME 64

static const char *const pieces[] = {
	"binlog.",
	"binlog.000",
	"host-relay-bin.",
	"ib_logfile",
	"#innodb_redo/#ib_redo",
	"log.00000",
	"000001",
	"000002",
	"000009",
	"999999999999999999",
	"1",
	"/",
	".",
	"index",
	"aria_log.00000001",
	"x",
	"\xff\x1b[31m",
	"-bin.000003",
	"a.0000000003.",
	"/data/",
};
#define PIECES (sizeof(pieces) / sizeof(pieces[0]))

static unsigned int next_random(uint64_t *state, unsigned int below)
{
	*state = *state * UINT64_C(6364136223846793005) + 1442695040888963407;
	return (*state >> 33) % below;
}

static void make_name(uint64_t *state, char *ret)
{
	size_t length = 0;
	unsigned int count = 1 + next_random(state, 4);

	ret[length++] = '/';
	for (unsigned int i = 0; i < count; i++) {
		const char *piece = pieces[next_random(state, PIECES)];
		if (length + strlen(piece) + 1 > NAME)
			break;
		memcpy(ret + length, piece, strlen(piece));
		length += strlen(piece);
	}
	ret[length] = '\0';
}

// Length of the path up to the number at its end; 0: it has none.
static size_t series_of(const char *path)
{
	const char *dot = strrchr(path, '.');

	if (!dot || strchr(dot, '/') || !dot[1] || dot[1 + strspn(dot + 1, "0123456789")])
		return 0;
	return dot + 1 - path;
}

static bool is_open(const struct stall_cache_file *file)
{
	return file->readers || file->writers;
}

static bool is_newer_of_series(const struct stall_cache_file *a, const struct stall_cache_file *b)
{
	size_t series = series_of(a->path);

	return series && series == series_of(b->path) && !strncmp(a->path, b->path, series) &&
	       a->class == b->class && a->target == b->target &&
	       strtoull(a->path + series, NULL, 10) > strtoull(b->path + series, NULL, 10);
}

static void check_log(const struct stall_cache_scan *scan, const struct stall_cache_file *file,
		      const struct stall_cache_plan *plan)
{
	bool has_newer_open = false, has_older_open = false;

	CHECK(!is_open(file));
	for (size_t i = 0; i < scan->count; i++) {
		const struct stall_cache_file *other = &scan->files[i];
		if (!is_open(other))
			continue;
		has_newer_open |= is_newer_of_series(other, file);
		has_older_open |= is_newer_of_series(file, other);
	}
	CHECK(has_newer_open);
	CHECK(!has_older_open);
	CHECK(plan->classes & 1u << file->class);
}

static void check_plan(const struct stall_cache_scan *scan, const struct stall_cache_plan *plan)
{
	for (size_t i = 0; i < scan->count; i++) {
		const struct stall_cache_file *file = &scan->files[i];

		CHECK(file->reason < STALL_CACHE_REASONS);
		CHECK(stall_cache_reason_name(file->reason) != NULL);
		if (file->reason != STALL_CACHE_MAY_GO)
			continue;
		CHECK(!file->deleted && !file->errnum);
		CHECK(file->method == STALL_CACHE_CACHESTAT);
		CHECK(file->until <= file->size + stall_cache_page_size());
		if (file->class == STALL_FILE_REDO)
			CHECK(plan->allow_redo);
		else
			check_log(scan, file, plan);
	}
}

static void try_random(uint64_t seed)
{
	static char names[FILES][NAME];
	struct stall_cache_file files[FILES];
	uint64_t state = seed;
	struct stall_cache_scan scan = {.files = files, .count = 1 + next_random(&state, FILES)};
	struct stall_cache_plan plan = {
		.classes = 1u << STALL_FILE_BINLOG | 1u << STALL_FILE_RELAY |
			   (next_random(&state, 2) ? 1u << STALL_FILE_REDO : 0),
		.keep = next_random(&state, 4),
		.keep_value = next_random(&state, 20000),
		.allow_redo = next_random(&state, 2),
		.dump_threads = (int)next_random(&state, 3) - 1,
		.now_ns = UINT64_C(1000000000) * 20000,
	};

	for (size_t i = 0; i < scan.count; i++) {
		make_name(&state, names[i]);
		files[i] = (struct stall_cache_file){
			.path = names[i],
			.size = next_random(&state, 100000),
			.mtime_ns = next_random(&state, 20000) * UINT64_C(1000000000),
			.class = stall_file_class(names[i], false),
			.deleted = next_random(&state, 20) == 0,
			.readers = next_random(&state, 6) == 0,
			.writers = next_random(&state, 6) == 0,
			.method = next_random(&state, 10) ? STALL_CACHE_CACHESTAT
							  : STALL_CACHE_MINCORE,
			.errnum = next_random(&state, 15) == 0,
		};
	}
	CHECK(stall_cache_plan_make(&scan, &plan) == NULL);
	check_plan(&scan, &plan);
}

int main(void)
{
	for (uint64_t seed = 1; seed <= ROUNDS; seed++)
		try_random(seed);
	return check_done();
}
