// SPDX-License-Identifier: Apache-2.0
#include "ebpf/denylist.h"

#include "check.h"

static const struct {
	struct stall_kernel_names names;
	unsigned int use;
	bool denied;
} cases[] = {
	// Where the fault came in, its last kernel, and where stable kernels fixed it.
	{{"5.8.18", "", ""}, STALL_DENY_TASK_STACK, false},
	{{"5.9.0", "", ""}, STALL_DENY_TASK_STACK, true},
	{{"5.10.0-8-amd64", "", ""}, STALL_DENY_TASK_STACK, true},
	{{"5.10.29", "", ""}, STALL_DENY_TASK_STACK, true},
	{{"5.10.30", "", ""}, STALL_DENY_TASK_STACK, false},
	{{"5.10.223-1", "", ""}, STALL_DENY_TASK_STACK, false},
	{{"5.11.13", "", ""}, STALL_DENY_TASK_STACK, true},
	{{"5.11.14", "", ""}, STALL_DENY_TASK_STACK, false},
	{{"5.12.0-rc7", "", ""}, STALL_DENY_TASK_STACK, false},
	{{"6.18.44", "", ""}, STALL_DENY_TASK_STACK, false},
	// Distributions keep the release, and say the version elsewhere.
	{{"5.10.0-8-amd64", "#1 SMP Debian 5.10.46-4 (2021-08-03)", ""},
	 STALL_DENY_TASK_STACK,
	 false},
	{{"5.10.0-32-amd64", "#1 SMP Debian 5.10.223-1 (2024-08-10)", ""},
	 STALL_DENY_TASK_STACK,
	 false},
	{{"5.10.0-6-amd64", "#1 SMP Debian 5.10.28-1 (2021-04-09)", ""},
	 STALL_DENY_TASK_STACK,
	 true},
	{{"5.11.0-16-generic", "#17-Ubuntu SMP Wed Apr 14 20:12:43 UTC 2021",
	  "Ubuntu 5.11.0-16.17-generic 5.11.12\n"},
	 STALL_DENY_TASK_STACK,
	 true},
	{{"5.11.0-49-generic", "#55-Ubuntu SMP Wed Jan 12 17:36:34 UTC 2022",
	  "Ubuntu 5.11.0-49.55-generic 5.11.22\n"},
	 STALL_DENY_TASK_STACK,
	 false},
	{{"5.10.1", "Debian", "Ubuntu "}, STALL_DENY_TASK_STACK, true},
	// What we do not do does not concern us.
	{{"5.10.1", "", ""}, 0, false},
	// Two numbers, and no number at all.
	{{"5.9", "", ""}, STALL_DENY_TASK_STACK, true},
	{{"6", "", ""}, STALL_DENY_TASK_STACK, false},
	{{"", "", ""}, STALL_DENY_TASK_STACK, false},
	{{"unknown", "", ""}, STALL_DENY_TASK_STACK, false},
};

static void test_releases(void)
{
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		bool denied = stall_denylist_find(&cases[i].names, cases[i].use) != NULL;

		if (denied != cases[i].denied)
			fprintf(stderr, "release %s, use %u\n", cases[i].names.release,
				cases[i].use);
		CHECK_INT(denied, cases[i].denied);
	}
}

static void test_entries_have_reasons(void)
{
	for (unsigned int i = 0; i < stall_denylist_count; i++) {
		const struct stall_denied_kernel *entry = &stall_denylist[i];

		CHECK(entry->what && entry->what[0]);
		CHECK(entry->reference && entry->reference[0]);
		CHECK(entry->fixed[0].major > 0);
	}
}

static void test_message(void)
{
	const struct stall_kernel_names names = {"5.9.1", "", ""};
	struct stall_error *err =
		stall_denylist_error("5.9.1", stall_denylist_find(&names, STALL_DENY_TASK_STACK));

	CHECK_INT(err->code, STALL_ERROR_UNSUPPORTED);
	CHECK(strstr(err->message, "5.9.1"));
	CHECK(strstr(err->message, "bpf_get_task_stack"));
	CHECK(strstr(err->message, "--force"));
	stall_error_destroy(err);
	CHECK_OK(stall_denylist_check(STALL_DENY_TASK_STACK, true));
}

int main(void)
{
	test_releases();
	test_entries_have_reasons();
	test_message();
	return check_done();
}
