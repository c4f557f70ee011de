// SPDX-License-Identifier: Apache-2.0
// Lengths at the ends of their types.
#include "base/lengths.h"

#include "check.h"

int main(void)
{
	uint64_t sum = 0;
	uint32_t product = 0;

	CHECK(stall_fits(0, 0, 0));
	CHECK(stall_fits(10, 0, 10));
	CHECK(stall_fits(3, 7, 10));
	CHECK(!stall_fits(3, 8, 10));
	CHECK(!stall_fits(11, 0, 10));
	CHECK(!stall_fits(UINT64_MAX, 2, 10));
	CHECK(!stall_fits(2, UINT64_MAX, UINT64_MAX));
	CHECK_INT(stall_rest(3, 10), 7);
	CHECK_INT(stall_rest(11, 10), 0);
	CHECK_INT(stall_at_most(11, 10), 10);
	CHECK_INT(stall_at_most(9, 10), 9);
	CHECK(stall_add(UINT64_MAX - 1, 1U, &sum) && sum == UINT64_MAX);
	CHECK(!stall_add(UINT64_MAX, 1U, &sum));
	// What counts is the type of the result.
	CHECK(stall_mul(UINT64_C(65535), 65537U, &product) && product == UINT32_MAX);
	CHECK(!stall_mul(UINT64_C(65536), 65536U, &product));
	return check_done();
}
