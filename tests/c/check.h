// SPDX-License-Identifier: Apache-2.0
// Checks that count. A test program calls these macros and ends with `return check_done();`.
#ifndef STALL_CHECK_H
#define STALL_CHECK_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static int check_passed, check_failed;

#define CHECK(condition)                                                                           \
	do {                                                                                       \
		if (condition) {                                                                   \
			check_passed++;                                                            \
		} else {                                                                           \
			check_failed++;                                                            \
			fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);    \
		}                                                                                  \
	} while (0)

#define CHECK_INT(actual, expected)                                                                \
	do {                                                                                       \
		long long check_a_ = (long long)(actual), check_e_ = (long long)(expected);        \
		if (check_a_ == check_e_) {                                                        \
			check_passed++;                                                            \
		} else {                                                                           \
			check_failed++;                                                            \
			fprintf(stderr, "%s:%d: %s is %lld (%#llx), not %lld (%#llx)\n", __FILE__, \
				__LINE__, #actual, check_a_, check_a_, check_e_, check_e_);        \
		}                                                                                  \
	} while (0)

#define CHECK_STRING(actual, expected)                                                             \
	do {                                                                                       \
		const char *check_a_ = (actual), *check_e_ = (expected);                           \
		if (check_a_ && check_e_ && !strcmp(check_a_, check_e_)) {                         \
			check_passed++;                                                            \
		} else {                                                                           \
			check_failed++;                                                            \
			fprintf(stderr, "%s:%d: %s is \"%s\", not \"%s\"\n", __FILE__, __LINE__,   \
				#actual, check_a_ ? check_a_ : "(null)",                           \
				check_e_ ? check_e_ : "(null)");                                   \
		}                                                                                  \
	} while (0)

// For functions that return struct stall_error *; prints the error.
#define CHECK_OK(call)                                                                             \
	do {                                                                                       \
		struct stall_error *check_err_ = (call);                                           \
		if (!check_err_) {                                                                 \
			check_passed++;                                                            \
		} else {                                                                           \
			check_failed++;                                                            \
			fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call,              \
				check_err_->message);                                              \
			stall_error_destroy(check_err_);                                           \
		}                                                                                  \
	} while (0)

static inline int check_done(void)
{
	printf("%d passed, %d failed\n", check_passed, check_failed);
	return check_failed ? 1 : 0;
}

// The seed of what is random: the same one each time, unless the program is run with "random" or with
// a number. It is printed.
static inline unsigned long long check_seed(int argc, char **argv)
{
	unsigned long long seed = 20261129;

	if (argc > 1 && !strcmp(argv[1], "random"))
		seed = (unsigned long long)time(NULL) << 16 ^ (unsigned long long)clock();
	else if (argc > 1)
		seed = strtoull(argv[1], NULL, 0);
	printf("seed %llu\n", seed);
	return seed;
}

// Whether STALLSCOPE_REQUIRE lists it, by its name in tests/needs.py.
static inline bool check_is_required(const char *need)
{
	const char *at = getenv("STALLSCOPE_REQUIRE");

	for (; at && *at; at += strspn(at, ", ")) {
		size_t length = strcspn(at, ", ");
		if (length == strlen(need) && !strncmp(at, need, length))
			return true;
		at += length;
	}
	return false;
}

// The exit code of a test whose requirement is missing: failed where STALLSCOPE_REQUIRE lists it,
// else the code that Meson counts as skipped.
static inline int check_missing(const char *need, const char *why)
{
	bool is_required = check_is_required(need);

	printf("%s: %s\n", is_required ? "failed" : "skipped", why);
	return is_required ? 1 : 77;
}

#endif
