// SPDX-License-Identifier: Apache-2.0
#include "base/layout.h"

#include <stdint.h>
#include <stdlib.h>

#include "check.h"

static int64_t value_of(const struct stall_layout *layout, const char *key)
{
	int64_t value = -777;

	return stall_layout_get(layout, key, &value) ? value : -777;
}

static void test_values(void)
{
	struct stall_layout layout = {};

	CHECK_INT(value_of(&layout, "a"), -777);
	CHECK_OK(stall_layout_add(&layout, ""));
	CHECK_OK(stall_layout_add(&layout, "   "));
	CHECK_INT(layout.count, 0);
	CHECK_OK(stall_layout_add(&layout, "  thd.user=16 thd.tls=-0x20   a=0x10 "));
	CHECK_INT(layout.count, 3);
	CHECK_INT(value_of(&layout, "thd.user"), 16);
	CHECK_INT(value_of(&layout, "thd.tls"), -32);
	CHECK_INT(value_of(&layout, "a"), 16);
	CHECK_INT(value_of(&layout, "thd.use"), -777);
	CHECK_INT(value_of(&layout, "thd.user.2"), -777);
	CHECK_OK(stall_layout_add(&layout, "a=1 b=9223372036854775807 c=-9223372036854775808"));
	CHECK_INT(layout.count, 5);
	CHECK_INT(value_of(&layout, "a"), 1);
	CHECK(value_of(&layout, "b") == INT64_MAX);
	CHECK(value_of(&layout, "c") == INT64_MIN);
	stall_layout_deinit(&layout);
	CHECK_INT(layout.count, 0);
	CHECK_INT(value_of(&layout, "a"), -777);
}

// What is refused leaves everything as it was, also where its beginning is right.
static void test_bad_input(void)
{
	static const char *const cases[] = {
		"a",	    "a=",      "=1",	    "a=x",
		"a=1x",	    "a=1,b=2", "new=1 a=z", "a=9223372036854775808",
		"a= 1",	    "new=2 =", "a==1",	    "a=-9223372036854775809",
		"a=\t1\tx", "a=0x",    "a=1 b=2\n",
	};
	struct stall_layout layout = {};
	char longest[256] = "";

	CHECK_OK(stall_layout_add(&layout, "a=5"));
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct stall_error *err = stall_layout_add(&layout, cases[i]);

		if (!err)
			fprintf(stderr, "taken: %s\n", cases[i]);
		CHECK(err && err->code == STALL_ERROR_USAGE);
		stall_error_destroy(err);
		CHECK_INT(layout.count, 1);
		CHECK_INT(value_of(&layout, "a"), 5);
	}
	memset(longest, 'k', 95);
	strcpy(longest + 95, "=7");
	CHECK_OK(stall_layout_add(&layout, longest));
	longest[95] = 'k';
	strcpy(longest + 96, "=7");
	struct stall_error *err = stall_layout_add(&layout, longest);
	CHECK(err != NULL);
	stall_error_destroy(err);
	memset(longest, 'k', 255);
	err = stall_layout_add(&layout, longest);
	CHECK(err != NULL);
	stall_error_destroy(err);
	CHECK_INT(layout.count, 2);
	stall_layout_deinit(&layout);
}

static void test_limit(void)
{
	struct stall_layout layout = {};
	char entry[64];

	// Backwards, so that each is put before all others.
	for (int i = STALL_LAYOUT_MAX; i > 0; i--) {
		snprintf(entry, sizeof(entry), "key.%05d=%d", i, i);
		CHECK_OK(stall_layout_add(&layout, entry));
	}
	CHECK_INT(layout.count, STALL_LAYOUT_MAX);
	for (int i = 1; i <= STALL_LAYOUT_MAX; i++) {
		snprintf(entry, sizeof(entry), "key.%05d", i);
		CHECK_INT(value_of(&layout, entry), i);
	}
	struct stall_error *err = stall_layout_add(&layout, "key.00001=3 one.more=1");
	CHECK(err != NULL);
	stall_error_destroy(err);
	CHECK_INT(value_of(&layout, "key.00001"), 1);
	CHECK_OK(stall_layout_add(&layout, "key.00001=3"));
	CHECK_INT(value_of(&layout, "key.00001"), 3);
	stall_layout_deinit(&layout);
}

int main(void)
{
	test_values();
	test_bad_input();
	test_limit();
	return check_done();
}
