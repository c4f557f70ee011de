// SPDX-License-Identifier: Apache-2.0
// Packs: written, read, damaged, found. Those that are made of programs: tests/unit/test_packs.py.
// `test-packs PACK` measures how long reading that one takes.
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/trust.h"
#include "check.h"
#include "elf_image.h"
#include "inputs.h"
#include "packs/pack_writer.h"
#include "packs/structures.h"
#include "unwind/pack_dirs.h"
#include "unwind/pack_file.h"
#include "unwind/symbols.h"

#define ID "0123456789abcdef"
#define FUNCTIONS 3000

static char folder[] = "/tmp/stallscope-packs-XXXXXX";

static uint64_t function_address(int index)
{
	return 0x1000 + (uint64_t)index * 32;
}

// Long enough that they take several blocks.
static void function_name(int index, char ret[256])
{
	snprintf(ret, 256, "_ZN4some4long9namespaceILi%dEE%0180dEv", index, index);
}

static struct stall_pack_writer *make_writer(const uint8_t **ret, size_t *ret_size)
{
	static const char layouts[] = "THD#size=8\nTHD.thread_id=4\n";
	struct stall_pack_header header = {.machine = EM_X86_64,
					   .symbols = STALL_PACK_SYMTAB,
					   .text_address = 0x1000};
	struct stall_pack_writer *writer;
	char name[256];

	CHECK_OK(stall_pack_writer_create(&writer));
	for (int i = 0; i < FUNCTIONS; i++) {
		function_name(i, name);
		CHECK_OK(stall_pack_writer_add(writer, name, function_address(i), 20,
					       ELF64_ST_INFO(STB_LOCAL, STT_FUNC), false));
	}
	// Below the last function: the addresses of objects begin at 0 again.
	CHECK_OK(stall_pack_writer_add(writer, "_ZL9LOCK_open", 0x800, 8,
				       ELF64_ST_INFO(STB_LOCAL, STT_OBJECT), true));
	CHECK_OK(stall_pack_writer_add(writer, "", 0x900, 8, 0, true));
	strcpy(header.identity, ID);
	strcpy(header.name, "mariadbd");
	CHECK_OK(stall_pack_writer_finish(writer, &header, layouts, strlen(layouts), 2, ret,
					  ret_size));
	return writer;
}

static bool count_symbol(void *arg, const struct stall_pack_symbol *symbol)
{
	int *counts = arg;

	counts[symbol->is_object]++;
	if (symbol->is_object) {
		CHECK_INT(symbol->address, 0x800);
		CHECK_INT(symbol->size, 8);
	} else {
		CHECK_INT(symbol->address, function_address(counts[0] - 1));
	}
	return true;
}

static void test_what_is_written_is_read(const uint8_t *bytes, size_t size)
{
	_cleanup_(stall_pack_destroyp) struct stall_pack *pack = NULL;
	int counts[2] = {};

	CHECK_OK(stall_pack_open(file_of(bytes, size), ID, &pack));
	const struct stall_pack_header *header = stall_pack_header(pack);
	CHECK_STRING(header->name, "mariadbd");
	CHECK_INT(header->function_count, FUNCTIONS);
	CHECK_INT(header->object_count, 1);
	CHECK(header->block_count > 3);
	CHECK_OK(stall_pack_each(pack, count_symbol, counts));
	CHECK_INT(counts[0], FUNCTIONS);
	CHECK_INT(counts[1], 1);
}

static void check_function(struct stall_symbols *symbols, int index)
{
	struct stall_symbol symbol = {};
	char name[256];

	function_name(index, name);
	CHECK(stall_symbols_find_function(symbols, function_address(index) + 19, &symbol));
	CHECK_STRING(symbol.linkage, name);
	free(symbol.linkage);
	// Between two functions.
	CHECK(!stall_symbols_find_function(symbols, function_address(index) + 20, &symbol));
}

static void test_symbols_come_from_it(const uint8_t *bytes, size_t size)
{
	_cleanup_(stall_pack_destroyp) struct stall_pack *pack = NULL;
	struct stall_symbols *symbols = NULL;
	struct stall_symbol symbol = {};

	CHECK_OK(stall_pack_open(file_of(bytes, size), ID, &pack));
	CHECK_OK(stall_symbols_create(NULL, NULL, pack, &symbols));
	CHECK_STRING(stall_symbols_source(symbols), "pack");
	// Back and forth, so that blocks are dropped and unpacked again.
	for (int i = 0; i < FUNCTIONS; i += 97) {
		check_function(symbols, i);
		check_function(symbols, FUNCTIONS - 1 - i);
	}
	CHECK(stall_symbols_find_name(symbols, "LOCK_open", &symbol));
	CHECK_INT(symbol.address, 0x800);
	free(symbol.linkage);
	CHECK(stall_symbols_find_object(symbols, 0x803, &symbol));
	CHECK_STRING(symbol.linkage, "_ZL9LOCK_open");
	free(symbol.linkage);
	CHECK(!stall_symbols_find_name(symbols, "LOCK_close", &symbol));
	stall_symbols_destroy(symbols);
}

// A program that was moved by 0x5000 after the pack was made, and has no table of its own.
static void test_moved_program(const uint8_t *bytes, size_t size)
{
	_cleanup_(stall_pack_destroyp) struct stall_pack *pack = NULL;
	_cleanup_(stall_elf_destroyp) struct stall_elf *elf = NULL;
	struct stall_symbols *symbols = NULL;
	struct stall_symbol symbol = {};
	struct elf_image image;

	image_init(&image, SHT_DYNSYM);
	image.segments[0] = (Elf64_Phdr){.p_type = PT_LOAD,
					 .p_flags = PF_X,
					 .p_vaddr = 0x6000,
					 .p_memsz = 0x1000};
	image.ehdr.e_phoff = offsetof(struct elf_image, segments);
	image.ehdr.e_phentsize = sizeof(Elf64_Phdr);
	image.ehdr.e_phnum = 1;
	CHECK_OK(stall_elf_open_image((const uint8_t *)&image, sizeof(image), false, &elf));
	CHECK_OK(stall_pack_open(file_of(bytes, size), ID, &pack));
	CHECK_OK(stall_symbols_create(elf, NULL, pack, &symbols));
	CHECK_STRING(stall_symbols_source(symbols), "pack");
	CHECK(stall_symbols_find_function(symbols, 0x5000 + function_address(7), &symbol));
	CHECK_INT(symbol.address, 0x5000 + function_address(7));
	free(symbol.linkage);
	stall_symbols_destroy(symbols);
}

static void check_refused(const uint8_t *bytes, size_t size, const char *identity)
{
	struct stall_pack *pack = NULL;
	struct stall_error *err = stall_pack_open(file_of(bytes, size), identity, &pack);

	CHECK(err && err->message[0] && !strchr(err->message, '\n'));
	CHECK(!pack);
	stall_error_destroy(err);
}

static void test_another_build(const uint8_t *bytes, size_t size)
{
	_cleanup_(stall_pack_destroyp) struct stall_pack *pack = NULL;

	check_refused(bytes, size, "fedcba9876543210");
	CHECK_OK(stall_pack_open(file_of(bytes, size), NULL, &pack));
}

static void test_torn(const uint8_t *bytes, size_t size)
{
	for (size_t cut = 0; cut < size; cut += cut < 512 ? 1 : 997)
		check_refused(bytes, cut, ID);
	check_refused((const uint8_t *)"\x7f"
				       "ELF and something else",
		      24, ID);
}

// With the right checksum, as an attacker would write it.
static void sign(uint8_t *bytes, size_t size)
{
	struct stall_pack_header header;

	memcpy(&header, bytes, sizeof(header));
	if (header.header_size > size)
		return;
	memset(bytes + offsetof(struct stall_pack_header, checksum), 0, 4);
	uint32_t sum = (uint32_t)crc32(0, bytes, header.header_size);
	memcpy(bytes + offsetof(struct stall_pack_header, checksum), &sum, 4);
}

static bool name_all(void *arg, const struct stall_pack_symbol *symbol)
{
	const char *name = stall_pack_name(arg, symbol->name);

	return !name || strlen(name) <= STALL_PACK_MAX_LINKAGE;
}

static void read_all(const uint8_t *bytes, size_t size)
{
	_cleanup_(stall_pack_destroyp) struct stall_pack *pack = NULL;
	struct stall_error *err = stall_pack_open(file_of(bytes, size), ID, &pack);

	if (!err)
		err = stall_pack_each(pack, name_all, pack);
	CHECK(!err || err->message[0]);
	stall_error_destroy(err);
}

static void test_damaged_header(const uint8_t *bytes, size_t size)
{
	_cleanup_free_ uint8_t *copy = malloc(size);

	for (size_t at = 0; at < sizeof(struct stall_pack_header) + 8; at++) {
		memcpy(copy, bytes, size);
		copy[at] ^= 0xff;
		check_refused(copy, size, ID);
		sign(copy, size);
		read_all(copy, size);
	}
}

static void test_damaged_parts(const uint8_t *bytes, size_t size)
{
	struct stall_pack_header header;
	_cleanup_free_ uint8_t *copy = malloc(size);
	_cleanup_(stall_pack_destroyp) struct stall_pack *pack = NULL;
	struct stall_symbols *symbols = NULL;
	struct stall_symbol symbol;

	memcpy(&header, bytes, sizeof(header));
	memcpy(copy, bytes, size);
	memset(copy + header.table.offset, 0xa5, header.table.packed);
	CHECK_OK(stall_pack_open(file_of(copy, size), ID, &pack));
	CHECK_OK(stall_symbols_create(NULL, NULL, pack, &symbols));
	CHECK_STRING(stall_symbols_source(symbols), "none");
	stall_symbols_destroy(symbols);
	stall_pack_destroy(no_cleanup_ptr(pack));

	memcpy(copy, bytes, size);
	memset(copy + header.names.offset, 0xa5, 64); // the first block of names alone
	CHECK_OK(stall_pack_open(file_of(copy, size), ID, &pack));
	CHECK_OK(stall_symbols_create(NULL, NULL, pack, &symbols));
	CHECK(!stall_symbols_find_function(symbols, function_address(0), &symbol));
	check_function(symbols, FUNCTIONS - 1);
	stall_symbols_destroy(symbols);
}

static void write_pack(const char *name, const uint8_t *bytes, size_t size)
{
	char path[256];

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
	CHECK(fd >= 0 && write(fd, bytes, size) == (ssize_t)size);
	close(fd);
}

static void test_found_by_name(const uint8_t *bytes, size_t size)
{
	const char *paths[] = {"/no/such/folder", folder};
	struct stall_search_dirs dirs;
	struct stall_pack *pack = NULL;
	char *path = NULL, expected[256];

	CHECK_OK(stall_search_dirs_init(&dirs, paths, 2, STALL_PACK_DIR));
	write_pack(ID ".pack", bytes, size);
	CHECK_OK(stall_pack_dirs_find(&dirs, ID, &pack, &path));
	snprintf(expected, sizeof(expected), "%s/%s", folder, ID ".pack");
	CHECK_STRING(path, expected);
	stall_pack_destroy(pack);
	free(path);
	pack = NULL;
	CHECK_OK(stall_pack_dirs_find(&dirs, "00112233", &pack, &path));
	CHECK_OK(stall_pack_dirs_find(&dirs, "../" ID, &pack, &path));
	CHECK(!pack);
	// Of another build under this name, and torn: errors that name the file.
	write_pack("00112233.pack", bytes, size);
	struct stall_error *err = stall_pack_dirs_find(&dirs, "00112233", &pack, &path);
	CHECK(err && strstr(err->message, "00112233.pack"));
	stall_error_destroy(err);
	write_pack("00112233.pack", bytes, size / 2);
	err = stall_pack_dirs_find(&dirs, "00112233", &pack, &path);
	CHECK(err && strstr(err->message, "torn"));
	stall_error_destroy(err);
	stall_search_dirs_deinit(&dirs);
}

// Of a folder and of a file that others can change nothing is used, and the reason is given.
static void test_distrusted(const uint8_t *bytes, size_t size)
{
	const char *paths[] = {folder};
	struct stall_search_dirs dirs;
	struct stall_pack *pack = NULL;
	char *path = NULL, file[256];

	if (geteuid()) // who has no privileges uses what it names
		return;
	write_pack(ID ".pack", bytes, size);
	snprintf(file, sizeof(file), "%s/%s", folder, ID ".pack");
	CHECK(chmod(file, 0646) == 0);
	CHECK_OK(stall_search_dirs_init(&dirs, paths, 1, STALL_PACK_DIR));
	struct stall_error *err = stall_pack_dirs_find(&dirs, ID, &pack, &path);
	CHECK(stall_is_distrust(err) && strstr(err->message, ".pack is not used: ") &&
	      strstr(err->message, "(mode 0646): chmod go-w"));
	CHECK(!pack && !path);
	stall_error_destroy(err);
	stall_search_dirs_deinit(&dirs);
	CHECK(chmod(file, 0644) == 0 && chmod(folder, 0777) == 0);
	CHECK_OK(stall_search_dirs_init(&dirs, paths, 1, STALL_PACK_DIR));
	err = stall_pack_dirs_find(&dirs, ID, &pack, &path);
	CHECK(stall_is_distrust(err) && strstr(err->message, "(mode 0777): chmod go-w"));
	CHECK(!pack && !path);
	stall_error_destroy(err);
	stall_search_dirs_deinit(&dirs);
	CHECK(chmod(folder, 0700) == 0);
}

static void test_identities(void)
{
	CHECK(stall_identity_is_valid("0123abcd"));
	CHECK(stall_identity_is_valid("crc32-0123abcd-1f"));
	CHECK(!stall_identity_is_valid(""));
	CHECK(!stall_identity_is_valid("abc"));
	CHECK(!stall_identity_is_valid("0123ABCD"));
	CHECK(!stall_identity_is_valid("crc32-"));
	CHECK(!stall_identity_is_valid("crc32-0123abcd"));
	CHECK(!stall_identity_is_valid("crc32-0123abcd-"));
	CHECK(!stall_identity_is_valid("crc32-0123abcd-1f/"));
	CHECK(!stall_identity_is_valid("../../etc/passwd"));
}

static void test_names(void)
{
	struct stall_layout_key key = {};

	CHECK(stall_layout_key_add(&key, "::", "sux_lock<ssux_lock_impl<true> >"));
	CHECK_STRING(key.text, "sux_lock<ssux_lock_impl<true>>");
	CHECK(!stall_layout_key_add(&key, ".", ""));
	CHECK(!stall_layout_key_add(&key, ".", "a=b"));
	CHECK(!stall_layout_key_add(&key, ".", "a\nb"));
	CHECK(stall_layout_key_add(&key, ".", "member"));
	CHECK_STRING(key.text, "sux_lock<ssux_lock_impl<true>>.member");
}

// A namespace and a class whose names fill the key, or would overflow it: an ordinary program may
// have them.
static void test_long_names(void)
{
	char outer[STALL_LAYOUT_MAX_KEY + 8], inner[STALL_LAYOUT_MAX_KEY + 8];

	for (size_t x = 1; x < sizeof(outer) - 1; x++) {
		for (size_t y = 1; y < sizeof(inner) - 1; y++) {
			struct stall_layout_key key = {};

			memset(outer, 'o', x);
			memset(inner, 'i', y);
			outer[x] = inner[y] = '\0';
			CHECK_INT(stall_layout_key_add(&key, "::", outer),
				  x <= STALL_LAYOUT_MAX_KEY);
			CHECK_INT(key.length, x <= STALL_LAYOUT_MAX_KEY ? x : 0);
			size_t before = key.length, all = before + (before ? 2 : 0) + y;
			CHECK_INT(stall_layout_key_add(&key, "::", inner),
				  all <= STALL_LAYOUT_MAX_KEY);
			CHECK_INT(key.length, all <= STALL_LAYOUT_MAX_KEY ? all : before);
			CHECK_INT(strlen(key.text), key.length);
		}
	}
}

static int measure(const char *path)
{
	_cleanup_(stall_pack_destroyp) struct stall_pack *pack = NULL;
	struct stall_symbols *symbols = NULL;
	struct stall_symbol symbol = {};
	uint64_t began = stall_clock_ns(CLOCK_MONOTONIC);

	CHECK_OK(stall_pack_open(open(path, O_RDONLY | O_CLOEXEC), NULL, &pack));
	if (!pack)
		return check_done();
	CHECK_OK(stall_symbols_create(NULL, NULL, pack, &symbols));
	uint64_t opened = stall_clock_ns(CLOCK_MONOTONIC);
	uint64_t text = stall_pack_header(pack)->text_address;
	// The functions of a busy capture, all over a program of 8 MB.
	for (uint64_t i = 0; i < 500; i++) {
		if (stall_symbols_find_function(symbols, text + i * 7919 % 500 * 16384, &symbol))
			free(symbol.linkage);
	}
	uint64_t found = stall_clock_ns(CLOCK_MONOTONIC);
	printf("table %.1f ms, names of 500 places %.1f ms\n", (double)(opened - began) / 1e6,
	       (double)(found - opened) / 1e6);
	stall_symbols_destroy(symbols);
	return check_done();
}

int main(int argc, char **argv)
{
	const uint8_t *bytes = NULL;
	size_t size = 0;

	if (argc > 1)
		return measure(argv[1]);
	CHECK(mkdtemp(folder));
	struct stall_pack_writer *writer = make_writer(&bytes, &size);
	test_what_is_written_is_read(bytes, size);
	test_symbols_come_from_it(bytes, size);
	test_moved_program(bytes, size);
	test_another_build(bytes, size);
	test_torn(bytes, size);
	test_damaged_header(bytes, size);
	test_damaged_parts(bytes, size);
	test_found_by_name(bytes, size);
	test_distrusted(bytes, size);
	stall_pack_writer_destroy(writer);
	test_identities();
	test_names();
	test_long_names();
	char command[256];
	snprintf(command, sizeof(command), "rm -rf %s", folder);
	CHECK(system(command) == 0);
	return check_done();
}
