// SPDX-License-Identifier: Apache-2.0
#include "base/error.h"

#include <errno.h>

#include "check.h"

static void test_codes(void)
{
	static const struct {
		int errnum;
		enum stall_error_code code;
	} cases[] = {
		{EPERM, STALL_ERROR_PERMISSION}, {EACCES, STALL_ERROR_PERMISSION},
		{ESRCH, STALL_ERROR_NO_PROCESS}, {EIO, STALL_ERROR_OS},
		{ENOMEM, STALL_ERROR_OS},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct stall_error *err = stall_error_os(cases[i].errnum, "cannot open %s", "x");

		CHECK_INT(err->code, cases[i].code);
		CHECK_INT(err->errnum, cases[i].errnum);
		CHECK(strstr(err->message, "cannot open x: ") == err->message);
		CHECK(strstr(err->message, strerror(cases[i].errnum)));
		stall_error_destroy(err);
	}
}

static void test_one_line(void)
{
	struct stall_error *err = stall_error_create(STALL_ERROR_FORMAT, "%s",
						     "a\nb\tc\033[31md\177e \303\244 \302\233"
						     "2J \233"
						     "2J");

	CHECK_STRING(err->message, "a?b?c?[31md?e \303\244 ??2J ?2J");
	CHECK_INT(err->code, STALL_ERROR_FORMAT);
	CHECK_INT(err->errnum, 0);
	stall_error_destroy(err);
}

static void test_no_memory(void)
{
	CHECK_INT(stall_enomem.code, STALL_ERROR_NO_MEMORY);
	stall_error_destroy(&stall_enomem);
	stall_error_destroy(NULL);
	CHECK(stall_enomem.message != NULL);
}

int main(void)
{
	test_codes();
	test_one_line();
	test_no_memory();
	return check_done();
}
