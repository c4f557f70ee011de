// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "check.h"
#include "unwind/elf_file.h"
#include "unwind/symbolize.h"

void sample(void);
__asm__(".text\n\t.globl sample\n\t.type sample, "
	"@function\nsample:\n\t.cfi_startproc\n\tnop\n\tnop\n\t"
	"nop\n\tret\n\t.cfi_endproc\n\t.size sample, . - sample\n");

static char dir[] = "/tmp/stall-symbolize-XXXXXX";
static char build_id[2 * STALL_BUILD_ID_MAX + 1];
static uint64_t address; // of sample in the file

static void find_self(void)
{
	struct stall_elf *elf = NULL;
	char line[512];
	uint64_t start, end, offset, bias = 0, at = (uint64_t)(uintptr_t)sample;
	_cleanup_fclose_ FILE *maps = fopen("/proc/self/maps", "re");

	CHECK_OK(stall_elf_open(open("/proc/self/exe", O_RDONLY | O_CLOEXEC), &elf));
	stall_elf_build_id_text(elf, build_id);
	while (maps && fgets(line, sizeof(line), maps)) {
		if (sscanf(line, "%lx-%lx %*s %lx", &start, &end, &offset) == 3 && at >= start &&
		    at < end)
			CHECK_OK(stall_elf_bias(elf, start, offset, &bias));
	}
	address = at - bias;
	stall_elf_destroy(elf);
}

static struct stall_symbolizer *make_symbolizer(void)
{
	const char *const dirs[] = {dir};
	const struct stall_symbolizer_options options = {.dirs = dirs, .dir_count = 1};
	struct stall_symbolizer *symbolizer = NULL;

	CHECK_OK(stall_symbolizer_create(&options, &symbolizer));
	return symbolizer;
}

static void check_found(const char *id, const char *path, const char *expected_file)
{
	struct stall_symbolizer *symbolizer = make_symbolizer();
	const uint64_t addresses[] = {address + 2, address, address, 0};
	const bool callers[] = {false, false, true, false};
	struct stall_symbolized found[4];
	const char *file = NULL;
	bool is_pack = true;

	CHECK_OK(stall_symbolizer_lookup(symbolizer, id, path, addresses, callers, 4, found, &file,
					 &is_pack));
	CHECK(!is_pack);
	CHECK_STRING(found[0].symbol, "sample");
	CHECK_INT(found[0].offset, 2);
	CHECK(!found[0].linkage);
	CHECK_STRING(found[1].symbol, "sample");
	// As a return address it belongs to what stands before.
	CHECK(!found[2].symbol || strcmp(found[2].symbol, "sample") != 0);
	CHECK(!found[3].symbol);
	if (expected_file)
		CHECK_STRING(file, expected_file);
	stall_symbolizer_destroy(symbolizer);
}

static void check_fails(const char *id, const char *path)
{
	struct stall_symbolizer *symbolizer = make_symbolizer();
	struct stall_symbolized found;
	const char *file;
	bool is_pack;

	// The second time the answer is remembered, and the same.
	for (int i = 0; i < 2; i++) {
		struct stall_error *err = stall_symbolizer_lookup(symbolizer, id, path, &address,
								  NULL, 1, &found, &file, &is_pack);

		CHECK(err && err->message[0]);
		stall_error_destroy(err);
	}
	stall_symbolizer_destroy(symbolizer);
}

static void test_fails(void)
{
	struct stall_symbolizer *symbolizer;
	const char *const missing[] = {"/no/such/directory"};
	const struct stall_symbolizer_options options = {.dirs = missing, .dir_count = 1};

	check_fails("0011223344556677", NULL);
	check_fails("0011223344556677", "/proc/self/exe"); // another file by that path
	check_fails(NULL, "/no/such/file");
	check_fails(NULL, "/etc/passwd");
	check_fails(NULL, "/dev/zero");
	check_fails("../../../../etc/passwd", NULL);
	check_fails("", NULL);
	check_fails(NULL, NULL);
	struct stall_error *err = stall_symbolizer_create(&options, &symbolizer);
	CHECK(err && err->errnum == ENOENT);
	stall_error_destroy(err);
}

// A copy of this program, at a path that has its build-id in it.
static void check_found_at(const char *format)
{
	char path[256], command[1024];

	snprintf(path, sizeof(path), format, dir, build_id, build_id + 2);
	snprintf(command, sizeof(command), "mkdir -p $(dirname %s) && cp /proc/%d/exe %s", path,
		 getpid(), path);
	CHECK_INT(system(command), 0);
	check_found(build_id, NULL, path);
	snprintf(command, sizeof(command), "rm -r %1$s && mkdir %1$s", dir);
	CHECK_INT(system(command), 0);
}

int main(void)
{
	find_self();
	CHECK(mkdtemp(dir));
	check_found(NULL, "/proc/self/exe", "/proc/self/exe");
	test_fails();
	if (strlen(build_id) < 4) {
		printf("skipped: the linker wrote no build-id\n");
	} else {
		check_found(build_id, "/proc/self/exe", "/proc/self/exe");
		check_fails(build_id, NULL);
		check_found_at("%1$s/%2$s/debuginfo");		    // as debuginfod keeps its files
		check_found_at("%1$s/.build-id/%2$.2s/%3$s.debug"); // as gdb expects them
	}
	CHECK(rmdir(dir) == 0);
	return check_done();
}
