// SPDX-License-Identifier: Apache-2.0
// Lines of mountinfo: those of kernels, of container engines, and hostile ones.
#include <string.h>

#include "check.h"
#include "proc/mounts.h"
#include "snapshot/blocked_files.h"

#define ROOT_LINE "36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue"

static bool parse(const char *line, struct stall_mount *ret)
{
	static char copy[4096];

	CHECK(strlen(line) < sizeof(copy));
	return stall_mount_parse(strcpy(copy, line), ret);
}

static void test_lines_of_kernels(void)
{
	struct stall_mount mount;

	CHECK(parse(ROOT_LINE, &mount));
	CHECK_INT(mount.id, 36);
	CHECK_STRING(mount.device_number, "98:0");
	CHECK_STRING(mount.root, "/mnt1");
	CHECK_STRING(mount.point, "/mnt2");
	CHECK_STRING(mount.type, "ext3");
	CHECK_STRING(mount.device, "/dev/root");
	// No optional fields, or several.
	CHECK(parse("1 0 0:1 / / rw - overlay overlay rw", &mount));
	CHECK_STRING(mount.type, "overlay");
	CHECK(parse("1 0 0:1 / / rw shared:1 master:2 propagate_from:3 - xfs /dev/sda1 rw",
		    &mount));
	CHECK_STRING(mount.device, "/dev/sda1");
}

static void test_escapes(void)
{
	struct stall_mount mount;

	CHECK(parse("1 0 8:1 / /my\\040data\\134x rw - ext4 /dev/a\\040b rw", &mount));
	CHECK_STRING(mount.point, "/my data\\x");
	CHECK_STRING(mount.device, "/dev/a b");
	// Not three octal digits of one byte.
	CHECK(parse("1 0 8:1 / /a\\04 rw - ext4 /dev/sda\\9 rw", &mount));
	CHECK_STRING(mount.point, "/a\\04");
	CHECK_STRING(mount.device, "/dev/sda\\9");
	CHECK(parse("1 0 8:1 / /a\\777 rw - ext4 x\\ rw", &mount));
	CHECK_STRING(mount.point, "/a\\777");
}

// Cut anywhere it is refused, or has all of its fields.
static void test_each_beginning(void)
{
	char line[] = ROOT_LINE;
	struct stall_mount mount;

	for (size_t size = strlen(line); size-- > 0;) {
		line[size] = '\0';
		if (!parse(line, &mount))
			continue;
		CHECK(mount.device_number && mount.point && mount.type && mount.device);
		CHECK(*mount.device);
	}
	CHECK(!parse("", &mount));
	CHECK(!parse(" - ", &mount));
	CHECK(!parse("1 0 8:1 / /a - ext4 /dev/sda rw", &mount)); // without its options
}

int main(void)
{
	test_lines_of_kernels();
	test_escapes();
	test_each_beginning();
	return check_done();
}
