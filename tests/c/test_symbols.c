// SPDX-License-Identifier: Apache-2.0
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "check.h"
#include "elf_image.h"
#include "unwind/demangle.h"
#include "unwind/symbols.h"

static struct stall_elf *elf;
static struct stall_symbols *symbols;

static void open_image(const struct elf_image *image)
{
	CHECK_OK(stall_elf_open_image((const uint8_t *)image, sizeof(*image), false, &elf));
	CHECK_OK(stall_symbols_create(elf, NULL, NULL, &symbols));
}

static void close_image(void)
{
	stall_symbols_destroy(symbols);
	stall_elf_destroy(elf);
	symbols = NULL;
	elf = NULL;
}

// The name of the function there, or "" for none.
static const char *function_at(uint64_t address)
{
	static char name[256];
	struct stall_symbol symbol;

	if (!stall_symbols_find_function(symbols, address, &symbol))
		return "";
	snprintf(name, sizeof(name), "%s", symbol.linkage);
	free(symbol.linkage);
	return name;
}

static void test_size_is_believed(void)
{
	struct elf_image image;

	image_init(&image, SHT_SYMTAB);
	image_symbol(&image, "first", STB_GLOBAL, STT_FUNC, IMAGE_TEXT, 0x1100, 0x20);
	image_symbol(&image, "second", STB_GLOBAL, STT_FUNC, IMAGE_TEXT, 0x1140, 0x10);
	open_image(&image);
	CHECK_STRING(stall_symbols_source(symbols), ".symtab");
	CHECK_STRING(function_at(0x10ff), "");
	CHECK_STRING(function_at(0x1100), "first");
	CHECK_STRING(function_at(0x111f), "first");
	CHECK_STRING(function_at(0x1120), "");
	CHECK_STRING(function_at(0x113f), "");
	CHECK_STRING(function_at(0x114f), "second");
	CHECK_STRING(function_at(0x1150), "");
	CHECK_STRING(function_at(UINT64_MAX), "");
	close_image();
}

static void test_inner_before_outer(void)
{
	struct elf_image image;

	image_init(&image, SHT_SYMTAB);
	image_symbol(&image, "outer", STB_GLOBAL, STT_FUNC, IMAGE_TEXT, 0x1100, 0x100);
	image_symbol(&image, "inner", STB_LOCAL, STT_FUNC, IMAGE_TEXT, 0x1140, 0x10);
	image_symbol(&image, "later", STB_LOCAL, STT_FUNC, IMAGE_TEXT, 0x1160, 0x10);
	open_image(&image);
	CHECK_STRING(function_at(0x1144), "inner");
	CHECK_STRING(function_at(0x1150), "outer");
	CHECK_STRING(function_at(0x11ff), "outer");
	CHECK_STRING(function_at(0x1200), "");
	close_image();
}

static void test_aliases(void)
{
	struct elf_image image;

	image_init(&image, SHT_SYMTAB);
	image_symbol(&image, "___pthread_mutex_lock", STB_LOCAL, STT_FUNC, IMAGE_TEXT, 0x1100, 16);
	image_symbol(&image, "__pthread_mutex_lock@@GLIBC_2.2.5", STB_GLOBAL, STT_FUNC, IMAGE_TEXT,
		     0x1100, 16);
	image_symbol(&image, "pthread_mutex_lock@@GLIBC_2.2.5", STB_GLOBAL, STT_FUNC, IMAGE_TEXT,
		     0x1100, 16);
	image_symbol(&image, "__write", STB_GLOBAL, STT_FUNC, IMAGE_TEXT, 0x1200, 16);
	image_symbol(&image, "write", STB_WEAK, STT_FUNC, IMAGE_TEXT, 0x1200, 16);
	image_symbol(&image, "local", STB_LOCAL, STT_FUNC, IMAGE_TEXT, 0x1300, 16);
	image_symbol(&image, "__exported", STB_WEAK, STT_FUNC, IMAGE_TEXT, 0x1300, 16);
	image_symbol(&image, "weak", STB_WEAK, STT_FUNC, IMAGE_TEXT, 0x1400, 16);
	image_symbol(&image, "strong", STB_GLOBAL, STT_FUNC, IMAGE_TEXT, 0x1400, 16);
	image_symbol(&image, "_ZN3FooC2Ev", STB_GLOBAL, STT_FUNC, IMAGE_TEXT, 0x1500, 16);
	image_symbol(&image, "_ZN3FooC1Ev", STB_GLOBAL, STT_FUNC, IMAGE_TEXT, 0x1500, 16);
	// Of one start but two lengths: each counts where it reaches.
	image_symbol(&image, "short", STB_GLOBAL, STT_FUNC, IMAGE_TEXT, 0x1600, 16);
	image_symbol(&image, "longer", STB_LOCAL, STT_FUNC, IMAGE_TEXT, 0x1600, 32);
	open_image(&image);
	CHECK_STRING(function_at(0x1108), "pthread_mutex_lock");
	CHECK_STRING(function_at(0x1208), "write");
	CHECK_STRING(function_at(0x1308), "__exported");
	CHECK_STRING(function_at(0x1408), "strong");
	CHECK_STRING(function_at(0x1508), "_ZN3FooC1Ev");
	CHECK_STRING(function_at(0x1608), "short");
	CHECK_STRING(function_at(0x1618), "longer");
	close_image();
}

static void fill_unsized(struct elf_image *image, uint32_t table)
{
	image_init(image, table);
	image_symbol(image, "assembly", STB_GLOBAL, STT_NOTYPE, IMAGE_TEXT, 0x1100, 0);
	image_symbol(image, "next", STB_GLOBAL, STT_FUNC, IMAGE_TEXT, 0x1180, 0x10);
	image_symbol(image, "last", STB_GLOBAL, STT_FUNC, IMAGE_TEXT, 0x1f00, 0);
	image_symbol(image, "_init", STB_GLOBAL, STT_FUNC, IMAGE_INIT, 0x2010, 0x8);
	image_symbol(image, "marker", STB_GLOBAL, STT_NOTYPE, IMAGE_DATA, 0x3000, 0);
}

static void test_without_size(void)
{
	struct elf_image image;

	fill_unsized(&image, SHT_SYMTAB);
	open_image(&image);
	CHECK_STRING(function_at(0x1100), "assembly");
	CHECK_STRING(function_at(0x117f), "assembly");
	CHECK_STRING(function_at(0x1188), "next");
	// Behind a sized symbol there is nothing, and a section's end ends its last symbol.
	CHECK_STRING(function_at(0x1190), "");
	CHECK_STRING(function_at(0x1fff), "last");
	CHECK_STRING(function_at(0x2000), "");
	CHECK_STRING(function_at(0x3000), "");
	close_image();
	// In .dynsym a static function may lie between two symbols.
	fill_unsized(&image, SHT_DYNSYM);
	open_image(&image);
	CHECK_STRING(stall_symbols_source(symbols), ".dynsym");
	CHECK_STRING(function_at(0x1100), "");
	CHECK_STRING(function_at(0x1188), "next");
	close_image();
}

static void test_what_is_left_out(void)
{
	struct elf_image image;

	image_init(&image, SHT_SYMTAB);
	image_symbol(&image, "undefined", STB_GLOBAL, STT_FUNC, SHN_UNDEF, 0x1100, 0x10);
	image_symbol(&image, "absolute", STB_GLOBAL, STT_FUNC, SHN_ABS, 0x1200, 0x10);
	image_symbol(&image, "data", STB_GLOBAL, STT_OBJECT, IMAGE_DATA, 0x3100, 0x10);
	image_symbol(&image, "per_thread", STB_GLOBAL, STT_TLS, IMAGE_DATA, 0x3200, 0x10);
	image_symbol(&image, "file.c", STB_LOCAL, STT_FILE, IMAGE_TEXT, 0x1300, 0x10);
	image_symbol(&image, "", STB_LOCAL, STT_FUNC, IMAGE_TEXT, 0x1400, 0x10);
	open_image(&image);
	CHECK_STRING(function_at(0x1108), "");
	CHECK_STRING(function_at(0x1208), "");
	CHECK_STRING(function_at(0x1308), "");
	CHECK_STRING(function_at(0x1408), "");
	CHECK_STRING(function_at(0x3108), "");
	struct stall_symbol symbol;
	CHECK(!stall_symbols_find_object(symbols, 0x3208, &symbol));
	CHECK(!stall_symbols_find_name(symbols, "per_thread", &symbol));
	CHECK_INT(stall_symbols_count(symbols), 2);
	close_image();
}

static void test_objects(void)
{
	struct elf_image image;
	struct stall_symbol symbol = {};

	image_init(&image, SHT_SYMTAB);
	image_symbol(&image, "LOCK_open", STB_GLOBAL, STT_OBJECT, IMAGE_DATA, 0x3100, 40);
	image_symbol(&image, "_ZL13LOCK_internal", STB_LOCAL, STT_OBJECT, IMAGE_DATA, 0x3200, 40);
	image_symbol(&image, "_ZN3buf4pool4lockE", STB_GLOBAL, STT_OBJECT, IMAGE_DATA, 0x3300, 40);
	image_symbol(&image, "server_version@@VERS_1", STB_GLOBAL, STT_OBJECT, IMAGE_DATA, 0x3400,
		     60);
	open_image(&image);
	CHECK(stall_symbols_find_object(symbols, 0x3127, &symbol));
	CHECK_STRING(symbol.linkage, "LOCK_open");
	CHECK_INT(symbol.address, 0x3100);
	free(symbol.linkage);
	CHECK(!stall_symbols_find_object(symbols, 0x3128, &symbol));
	static const struct {
		const char *name;
		uint64_t address;
	} found[] = {{"LOCK_open", 0x3100},
		     {"LOCK_internal", 0x3200},
		     {"buf::pool::lock", 0x3300},
		     {"server_version", 0x3400}};
	for (size_t i = 0; i < sizeof(found) / sizeof(found[0]); i++) {
		symbol.address = 0;
		CHECK(stall_symbols_find_name(symbols, found[i].name, &symbol));
		CHECK_INT(symbol.address, found[i].address);
		free(symbol.linkage);
	}
	CHECK(!stall_symbols_find_name(symbols, "LOCK", &symbol));
	CHECK(!stall_symbols_find_name(symbols, "", &symbol));
	CHECK(!stall_symbols_find_name(symbols, "::", &symbol));
	close_image();
}

static void test_overlaps_end(void)
{
	enum { COUNT = 200000 };
	_cleanup_free_ struct big {
		struct elf_image image;
		Elf64_Sym symbols[COUNT];
	} *big = malloc(sizeof(*big));

	// Every symbol but the first is too short to cover the address: the search must not read
	// them all, each time.
	image_init(&big->image, SHT_SYMTAB);
	uint32_t name = image_name(&big->image, IMAGE_STRINGS, "f");
	for (size_t i = 0; i < COUNT; i++)
		big->symbols[i] = (Elf64_Sym){.st_name = name,
					      .st_info = ELF64_ST_INFO(STB_GLOBAL, STT_FUNC),
					      .st_shndx = IMAGE_TEXT,
					      .st_value = 0x1000 + i,
					      .st_size = i ? 1 : UINT32_MAX};
	big->image.sections[IMAGE_SYMBOLS].sh_offset = offsetof(struct big, symbols);
	big->image.sections[IMAGE_SYMBOLS].sh_size = sizeof(big->symbols);
	CHECK_OK(stall_elf_open_image((uint8_t *)big, sizeof(*big), false, &elf));
	CHECK_OK(stall_symbols_create(elf, NULL, NULL, &symbols));
	CHECK_INT(stall_symbols_count(symbols), COUNT);
	for (uint64_t i = 0; i < 100; i++)
		function_at(0x1000 + COUNT + i);
	CHECK_STRING(function_at(0x1000 + COUNT - 1), "f");
	close_image();
}

static void check_demangled(const char *linkage, const char *expected)
{
	char *name = stall_demangle(linkage);

	if (expected)
		CHECK_STRING(name, expected);
	else
		CHECK(!name);
	free(name);
}

static void test_demangle(void)
{
	char longest[5000] = "_Z3000";

	check_demangled("_Z11mysqld_mainiPPc", "mysqld_main(int, char**)");
	check_demangled("_ZN3FooC1Ev", "Foo::Foo()");
	check_demangled("main", NULL);
	check_demangled("f", NULL); // a type, not a name
	check_demangled("_Z", NULL);
	check_demangled("", NULL);
	check_demangled("_ZZZZZZZZ", NULL);
	memset(longest + 6, 'a', sizeof(longest) - 7);
	check_demangled(longest, NULL);
}

// f(A, P<A, A>, P<P<A, A>, P<A, A>>, ...): each type is twice the one before.
static void nest(char *name, size_t size, int depth)
{
	static const char digits[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ";
	int length = snprintf(name, size, "_Z1f1A1PIS_S_E");

	// S_ is A, S0_ is P, S1_ is P<A, A>.
	for (int i = 1; i < depth; i++)
		length += snprintf(name + length, size - (size_t)length, "S0_IS%c_S%c_E", digits[i],
				   digits[i]);
}

// A name of a hundred gigabytes ends the process, before it takes the memory for it.
static void test_hostile_name(void)
{
	struct itimerval left;
	char name[512];
	int status = 0;

	nest(name, sizeof(name), 12);
	char *sound = stall_demangle(name);
	CHECK(!sound); // longer than a name may be
	free(sound);
	CHECK(getitimer(ITIMER_PROF, &left) == 0 && left.it_value.tv_usec == 0);
	nest(name, sizeof(name), 34);
	pid_t child = fork();
	if (child == 0) {
		free(stall_demangle(name));
		_exit(0);
	}
	CHECK(child > 0 && waitpid(child, &status, 0) == child);
	CHECK(WIFSIGNALED(status));
	CHECK_INT(WTERMSIG(status), SIGPROF);
}

int main(void)
{
	test_size_is_believed();
	test_inner_before_outer();
	test_aliases();
	test_without_size();
	test_what_is_left_out();
	test_objects();
	test_overlaps_end();
	test_demangle();
	test_hostile_name();
	return check_done();
}
