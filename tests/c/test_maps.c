// SPDX-License-Identifier: Apache-2.0
#include "snapshot/maps.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/privileges.h"
#include "check.h"
#include "proc/maps_line.h"
#include "snapshot/snapshot.h"

#define PAGE 4096UL

static bool parse(const char *text, struct stall_maps_line *ret)
{
	return stall_maps_line_parse(text, strlen(text), ret);
}

static void test_line(void)
{
	struct stall_maps_line line;

	CHECK(parse("5639d30e6000-5639d30eb000 r-xp 00002000 fe:00 247766                     "
		    "/usr/bin/a b",
		    &line));
	CHECK_INT(line.start, 0x5639d30e6000);
	CHECK_INT(line.end, 0x5639d30eb000);
	CHECK_INT(line.offset, 0x2000);
	CHECK_INT(line.dev, makedev(0xfe, 0));
	CHECK_INT(line.ino, 247766);
	CHECK(line.readable && line.executable);
	CHECK_INT(line.path_size, strlen("/usr/bin/a b"));

	CHECK(parse("7f00-8f00 ---p 00000000 00:00 0 ", &line));
	CHECK(!line.readable && !line.executable);
	CHECK_INT(line.path_size, 0);
	CHECK(parse("7f00-8f00 rw-s 00000000 00:00 0", &line));
	CHECK_INT(line.path_size, 0);
	CHECK(parse("ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 [vsyscall]", &line));
}

static void test_bad_lines(void)
{
	static const char *const bad[] = {
		"",
		" ",
		"-",
		"7f00",
		"7f00-",
		"7f00-8f00",
		"7f00-8f00 ",
		"7f00-8f00 r-x",
		"7f00-8f00 r-xp",
		"7f00-8f00 r-xp ",
		"7f00-8f00 r-xp 0",
		"7f00-8f00 r-xp 0 0:",
		"7f00-8f00 r-xp 0 0:0",
		"7f00-8f00 r-xp 0 0:0 ",
		"8f00-7f00 r-xp 0 0:0 0",	     // ends before it starts
		"7f00-7f00 r-xp 0 0:0 0",	     // empty
		"10000000000000000-1f r-xp 0 0:0 0", // 65 bits
		"7f00-8f00 r-xp 0 0:0 99999999999999999999",
		"7g00-8f00 r-xp 0 0:0 0",
		"7f00-8f00 r-xp 0 0:0 a",
	};
	struct stall_maps_line line;

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		bool taken = parse(bad[i], &line);
		if (taken)
			fprintf(stderr, "taken: \"%s\"\n", bad[i]);
		CHECK(!taken);
	}
}

static void check_path(const char *shown, const char *expected, bool expected_deleted)
{
	struct stall_maps_line line = {.path = shown, .path_size = strlen(shown)};
	bool deleted;
	char *path = stall_maps_line_path(&line, &deleted);

	CHECK_STRING(path, expected);
	CHECK_INT(deleted, expected_deleted);
	free(path);
}

static void test_paths(void)
{
	check_path("/usr/lib/libc.so.6", "/usr/lib/libc.so.6", false);
	check_path("/tmp/x (deleted)", "/tmp/x", true);
	check_path("/tmp/a\\012b", "/tmp/a\nb", false);
	check_path("/tmp/a\\012 (deleted)", "/tmp/a\n", true);
	check_path("/tmp/a\\01", "/tmp/a\\01", false);
	check_path("/tmp/a\\134012", "/tmp/a\\134012", false);
	check_path(" (deleted)", " (deleted)", false);
	check_path("", "", false);
}

static void test_code(void)
{
	struct stall_mapping mappings[] = {
		{.start = 0x1000, .end = 0x3000},
		{.start = 0x3000, .end = 0x5000, .offset = 0x2000, .executable = true},
		{.start = 0x8000, .end = 0x9000, .executable = true, .module = 1},
	};
	const struct stall_maps maps = {.mappings = mappings, .mapping_count = 3};

	CHECK(!stall_maps_find_code(&maps, 0, 0x1fff));
	CHECK(stall_maps_find_code(&maps, 0, 0x2000) == &mappings[1]);
	CHECK(stall_maps_find_code(&maps, 0, 0x3fff) == &mappings[1]);
	CHECK(!stall_maps_find_code(&maps, 0, 0x4000));
	CHECK(stall_maps_find_code(&maps, 1, 0) == &mappings[2]);
	CHECK(!stall_maps_find_code(&maps, 1, 0x2000));
	CHECK(!stall_maps_find_code(&maps, 2, 0));
	CHECK(!stall_maps_find_code(&maps, STALL_NO_MODULE, UINT64_MAX));
}

static void test_stack_end(void)
{
	struct stall_mapping mappings[] = {
		{.start = 0x1000, .end = 0x3000, .readable = true},
		{.start = 0x3000, .end = 0x4000, .readable = false},
		{.start = 0x8000, .end = 0x20000, .readable = true},
	};
	const struct stall_maps maps = {.mappings = mappings, .mapping_count = 3};

	CHECK(!stall_maps_find(&maps, 0xfff));
	CHECK(stall_maps_find(&maps, 0x1000) == &mappings[0]);
	CHECK(stall_maps_find(&maps, 0x2fff) == &mappings[0]);
	CHECK(stall_maps_find(&maps, 0x3000) == &mappings[1]);
	CHECK(!stall_maps_find(&maps, 0x4000));
	CHECK(stall_maps_find(&maps, 0x1ffff) == &mappings[2]);
	CHECK(!stall_maps_find(&maps, 0x20000));
	CHECK(!stall_maps_find(&maps, UINT64_MAX));

	CHECK_INT(stall_stack_end(&maps, 0x9000, 0), 0x20000);	     // unknown
	CHECK_INT(stall_stack_end(&maps, 0x9000, 0xf6c0), 0xf6c0);   // struct pthread above it
	CHECK_INT(stall_stack_end(&maps, 0x9000, 0x8800), 0x20000);  // below
	CHECK_INT(stall_stack_end(&maps, 0x9000, 0x20000), 0x20000); // elsewhere
	CHECK_INT(stall_stack_end(&maps, 0x3800, 0), 0x3800);	     // a guard
	CHECK_INT(stall_stack_end(&maps, 0x5000, 0), 0x5000);	     // nowhere
}

static const struct stall_module *module_at(const struct stall_maps *maps, const void *address)
{
	const struct stall_mapping *mapping = stall_maps_find(maps, (uintptr_t)address);

	return mapping && mapping->module != STALL_NO_MODULE ? &maps->modules[mapping->module]
							     : NULL;
}

// A file with one page of `content`, mapped executable; its path is not unlinked.
static void *map_file(const char *path, char content)
{
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	char page[PAGE];

	memset(page, content, sizeof(page));
	if (fd < 0 || write(fd, page, sizeof(page)) != sizeof(page))
		return NULL;
	void *mapped = mmap(NULL, PAGE, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0);
	close(fd);
	return mapped == MAP_FAILED ? NULL : mapped;
}

static int first_byte(const struct stall_module *module)
{
	unsigned char byte;

	return module && module->fd >= 0 && pread(module->fd, &byte, 1, 0) == 1 ? byte : -1;
}

static void test_own_modules(const struct stall_target *self, const char *dir)
{
	static int data = 1;
	char replaced[300], odd[300], gone[300];
	struct stall_maps *maps = NULL, *again = NULL;

	snprintf(replaced, sizeof(replaced), "%s/replaced", dir);
	snprintf(odd, sizeof(odd), "%s/new\nline", dir);
	snprintf(gone, sizeof(gone), "%s/really (deleted)", dir);
	void *old = map_file(replaced, 'o');
	CHECK(old && unlink(replaced) == 0);
	void *new = map_file(replaced, 'n');
	void *newline = map_file(odd, 'l');
	void *literal = map_file(gone, 'd');
	int twice_fd = open(gone, O_RDONLY | O_CLOEXEC);
	void *twice = mmap(NULL, PAGE, PROT_READ | PROT_EXEC, MAP_PRIVATE, twice_fd, 0);
	close(twice_fd);
	void *zero = MAP_FAILED;
	int device = open("/dev/zero", O_RDWR | O_CLOEXEC);
	if (device >= 0)
		zero = mmap(NULL, PAGE, PROT_READ | PROT_EXEC, MAP_PRIVATE, device, 0);

	CHECK_OK(stall_maps_create(self, NULL, NULL, &maps));
	const struct stall_module *module = module_at(maps, (void *)test_own_modules);
	CHECK(module && module->fd >= 0 && !module->deleted);
	CHECK(module_at(maps, &data) == module);
	CHECK_INT(first_byte(module), 0x7f); // ELF
	module = module_at(maps, old);
	CHECK(module && module->deleted);
	CHECK_STRING(module->path, replaced);
	if (stall_has_capability(STALL_CAP_CHECKPOINT_RESTORE)) // map_files takes it
		CHECK_INT(first_byte(module), 'o');
	else
		CHECK(first_byte(module) != 'n');
	module = module_at(maps, new);
	CHECK(module && !module->deleted);
	CHECK_INT(first_byte(module), 'n');
	module = module_at(maps, newline);
	CHECK_STRING(module->path, odd);
	CHECK_INT(first_byte(module), 'l');
	module = module_at(maps, literal);
	CHECK_STRING(module->path, gone);
	CHECK(!module->deleted);
	// One descriptor for both mappings of it.
	const struct stall_module *second = module_at(maps, twice);
	CHECK(second && second != module && second->fd == module->fd);
	CHECK(second->shared != module->shared);
	CHECK_STRING(second->path, gone);
	CHECK(!second->deleted);
	if (zero != MAP_FAILED) {
		module = module_at(maps, zero);
		CHECK(module && module->fd == -1);
		CHECK_STRING(module->error, "not a regular file");
	}
	for (size_t i = 1; i < maps->mapping_count; i++) {
		if (maps->mappings[i].start < maps->mappings[i - 1].end)
			CHECK(!"mappings overlap");
	}

	// The open files go over to the next maps, whatever happens to their paths.
	int fd = module_at(maps, new)->fd;
	CHECK(unlink(replaced) == 0);
	CHECK_OK(stall_maps_create(self, maps, NULL, &again));
	CHECK(module_at(again, newline)->fd >= 0 && module_at(maps, newline)->fd == -1);
	CHECK(module_at(again, new)->deleted && module_at(again, new)->fd == fd);
	stall_maps_destroy(maps);
	CHECK_INT(first_byte(module_at(again, newline)), 'l');
	stall_maps_destroy(again);
	stall_maps_destroy(NULL);
	unlink(odd);
	unlink(gone);
}

#define LINE 64

// The CPU time of a file that is mapped so often, each time as another module.
static uint64_t cost_of(size_t count)
{
	char *text = calloc(count, LINE);
	const struct stall_maps_text given = {.text = text, .sysroot = -1};
	uint64_t least = UINT64_MAX;

	for (size_t i = 0, at = 0; i < count; i++)
		at += (size_t)sprintf(text + at, "%zx-%zx r-xp 00000000 08:01 12 /no/such/file\n",
				      (i + 1) * 2 * PAGE, (i + 1) * 2 * PAGE + PAGE);
	for (int i = 0; i < 3; i++) {
		uint64_t before = stall_clock_ns(CLOCK_THREAD_CPUTIME_ID);
		struct stall_maps *maps = NULL;

		CHECK_OK(stall_maps_create_text(&given, NULL, NULL, &maps));
		uint64_t cost = stall_clock_ns(CLOCK_THREAD_CPUTIME_ID) - before;
		CHECK_INT(maps->module_count, count);
		stall_maps_destroy(maps);
		least = cost < least ? cost : least;
	}
	free(text);
	return least;
}

// Eight times as many cost eight times as much, or a little more, and not 64 times.
static void test_many_modules(void)
{
	CHECK(cost_of(STALL_MAX_MODULES) < 24 * cost_of(STALL_MAX_MODULES / 8));
}

int main(void)
{
	char dir[] = "/tmp/stall-maps-XXXXXX";
	struct stall_target self;

	test_line();
	test_bad_lines();
	test_paths();
	test_code();
	test_stack_end();
	test_many_modules();
	if (!mkdtemp(dir))
		return 1;
	CHECK_OK(stall_target_init(&self, getpid()));
	test_own_modules(&self, dir);
	stall_target_deinit(&self);
	rmdir(dir);
	return check_done();
}
