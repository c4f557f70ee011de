// SPDX-License-Identifier: Apache-2.0
// Rows of sound files, and what is kept from libdw of damaged ones.
#include <dlfcn.h>
#include <dwarf.h>
#include <elfutils/libdw.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "check.h"
#include "unwind/cfi.h"
#include "unwind/cfi_check.h"
#include "unwind/symbols.h"

// Code whose unwind information is known because it stands here.
void cfi_sample(void);
__asm__(".text\n\t.globl cfi_sample\n\t.type cfi_sample, @function\ncfi_sample:\n\t"
	".cfi_startproc\n\tpushq %rbx\n\t.cfi_adjust_cfa_offset 8\n\t.cfi_rel_offset rbx, 0\n\t"
	"nop\n\tpopq %rbx\n\t.cfi_adjust_cfa_offset -8\n\t.cfi_restore rbx\n\tret\n\t"
	".cfi_endproc\n\t.size cfi_sample, . - cfi_sample\n");

static struct stall_elf *open_elf(const char *path)
{
	struct stall_elf *elf = NULL;
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	CHECK(fd >= 0);
	if (fd >= 0)
		CHECK_OK(stall_elf_open(fd, &elf));
	return elf;
}

static uint64_t bias_of_self(const struct stall_elf *elf)
{
	char line[512], flags[8];
	uint64_t start, end, offset, bias = 0;
	uint64_t at = (uint64_t)(uintptr_t)cfi_sample;
	_cleanup_fclose_ FILE *maps = fopen("/proc/self/maps", "re");

	while (maps && fgets(line, sizeof(line), maps)) {
		if (sscanf(line, "%lx-%lx %7s %lx", &start, &end, flags, &offset) == 4 &&
		    at >= start && at < end)
			CHECK_OK(stall_elf_bias(elf, start, offset, &bias));
	}
	return bias;
}

static const struct stall_rule *rule_of(const struct stall_row *row, uint8_t reg)
{
	for (uint8_t i = 0; row && i < row->rule_count; i++) {
		if (row->rules[i].reg == reg)
			return &row->rules[i];
	}
	return NULL;
}

static void test_rows_of_self(void)
{
	struct stall_elf *elf = open_elf("/proc/self/exe");
	struct stall_cfi *cfi = NULL;
	bool bad;

	CHECK_OK(stall_cfi_create(elf, NULL, &cfi));
	uint64_t start = (uint64_t)(uintptr_t)cfi_sample - bias_of_self(elf);
	const struct stall_row *row = stall_cfi_row(cfi, start, &bad);
	CHECK(row && !bad);
	CHECK_INT(row->cfa_reg, STALL_REG_SP);
	CHECK_INT(row->cfa_offset, 8);
	CHECK_INT(rule_of(row, STALL_REG_RBX)->kind, STALL_RULE_SAME);
	CHECK_INT(rule_of(row, STALL_REG_PC)->kind, STALL_RULE_OFFSET);
	CHECK_INT(rule_of(row, STALL_REG_PC)->offset, -8);
	CHECK(!rule_of(row, 0)); // rax does not survive
	row = stall_cfi_row(cfi, start + 1, &bad);
	CHECK(row && !bad);
	CHECK_INT(row->cfa_offset, 16);
	CHECK_INT(rule_of(row, STALL_REG_RBX)->kind, STALL_RULE_OFFSET);
	CHECK_INT(rule_of(row, STALL_REG_RBX)->offset, -16);
	CHECK(!stall_cfi_row(cfi, 0, &bad) && !bad);
	CHECK(!stall_cfi_row(cfi, UINT64_MAX, &bad) && !bad);
	stall_cfi_destroy(cfi);
	stall_elf_destroy(elf);
}

// .debug_frame of one CIE, and one FDE with the program.
static void fill_section(uint8_t *section, const uint8_t *program, size_t size)
{
	static const uint8_t cie[] = {12, 0, 0, 0,    0xff, 0xff, 0xff, 0xff,
				      1,  0, 1, 0x78, 16,   0,	  0,	0};
	uint32_t length = (uint32_t)(4 + 8 + 8 + size);

	memset(section, 0, sizeof(cie) + 24);
	memcpy(section, cie, sizeof(cie));
	memcpy(section + sizeof(cie), &length, sizeof(length));
	memcpy(section + sizeof(cie) + 24, program, size);
}

static bool program_fits(const uint8_t *program, size_t size)
{
	static const unsigned char ident[EI_NIDENT] = {ELFMAG0,	   ELFMAG1,	ELFMAG2,   ELFMAG3,
						       ELFCLASS64, ELFDATA2LSB, EV_CURRENT};
	size_t whole = 16 + 24 + size;
	_cleanup_free_ uint8_t *section = malloc(whole + 64);
	Elf_Data data = {.d_buf = section, .d_size = whole};
	const struct stall_cfi_entries entries = {.e_ident = ident, .data = &data};

	fill_section(section, program, size);
	memset(section + whole, 0, 64);
	CHECK(!stall_cfi_fde_fits(&entries, 0)); // a CIE
	CHECK(!stall_cfi_fde_fits(&entries, whole));
	CHECK(!stall_cfi_fde_fits(&entries, UINT64_MAX - 1));
	bool fits = stall_cfi_fde_fits(&entries, 16);
	CHECK_INT(stall_cfi_all_fit(&entries), fits);
	section[16 + 4] = 200; // the CIE of it is nowhere
	CHECK(!stall_cfi_fde_fits(&entries, 16));
	return fits;
}

#define CHECK_FITS(expected, ...)                                                                  \
	CHECK_INT(program_fits((uint8_t[]){__VA_ARGS__}, sizeof((uint8_t[]){__VA_ARGS__})),        \
		  expected)

// What would have libdw take gigabytes, write outside its memory, or read on after the end.
static void test_hostile_programs(void)
{
	_cleanup_free_ uint8_t *long_program = calloc(1, 65537);
	uint8_t states[65];

	CHECK_FITS(true, DW_CFA_undefined, 0xff, 0x01, DW_CFA_offset | 3, 2,
		   DW_CFA_advance_loc | 1);
	CHECK_FITS(true, DW_CFA_def_cfa_expression, 2, DW_OP_breg7, 8, DW_CFA_restore | 3);
	CHECK_FITS(false, DW_CFA_undefined, 0x80, 0x02);
	CHECK_FITS(false, DW_CFA_register, 1, 0x80, 0x80, 0x80, 0x20);
	// Sixteen times this register is 16 in 64 bits.
	CHECK_FITS(false, DW_CFA_offset_extended, 0x81, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80,
		   0x10, 0);
	CHECK_FITS(false, DW_CFA_def_cfa_offset, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80,
		   0x80, 0x80, 1);
	CHECK_FITS(false, DW_CFA_def_cfa_offset, 0x80);
	CHECK_FITS(false, DW_CFA_advance_loc4, 0, 0, 0);
	CHECK_FITS(false, DW_CFA_def_cfa_expression, 2, DW_OP_breg7);
	CHECK_FITS(false, DW_CFA_restore_state);
	CHECK_FITS(false, DW_CFA_set_loc, 0, 0, 0, 0, 0, 0, 0, 0);
	CHECK_FITS(false, 0x3f);
	memset(states, DW_CFA_remember_state, sizeof(states));
	CHECK(program_fits(states, 64));
	CHECK(!program_fits(states, 65));
	CHECK(program_fits(long_program, 65536));
	CHECK(!program_fits(long_program, 65537));
}

// The program itself in memory, with its search table damaged by `damage`.
static bool finds_sample(void (*damage)(uint32_t *count, int32_t *table), bool *ret_bad)
{
	struct stall_elf *elf = open_elf("/proc/self/exe"), *copy = NULL;
	uint64_t address = (uint64_t)(uintptr_t)cfi_sample - bias_of_self(elf);
	const Elf64_Shdr *header = stall_elf_section(elf, ".eh_frame_hdr");
	struct stall_cfi *cfi = NULL;
	uint8_t *image = NULL;

	CHECK_OK(stall_elf_load(elf, 0, elf->size, SIZE_MAX, &image));
	damage((uint32_t *)(image + header->sh_offset + 8),
	       (int32_t *)(image + header->sh_offset + 12));
	CHECK_OK(stall_elf_open_image(image, elf->size, true, &copy));
	CHECK_OK(stall_cfi_create(copy, NULL, &cfi));
	bool found = stall_cfi_row(cfi, address, ret_bad);
	stall_cfi_destroy(cfi);
	stall_elf_destroy(copy);
	stall_elf_destroy(elf);
	return found;
}

static void damage_nothing(uint32_t *count, int32_t *table)
{
	(void)count, (void)table;
}

static void lengthen(uint32_t *count, int32_t *table)
{
	(void)table;
	*count += 1;
}

static void disorder(uint32_t *count, int32_t *table)
{
	(void)count;
	table[0] = INT32_MAX;
}

static void lead_astray(uint32_t *count, int32_t *table)
{
	for (uint32_t i = 0; i < *count; i++)
		table[2 * i + 1] = INT32_MAX;
}

static void test_hostile_tables(void)
{
	bool bad;

	CHECK(finds_sample(damage_nothing, &bad) && !bad);
	// Without the table one entry after the other is read.
	CHECK(finds_sample(lengthen, &bad) && !bad);
	CHECK(finds_sample(disorder, &bad) && !bad);
	CHECK(!finds_sample(lead_astray, &bad) && bad);
}

// A program with .debug_frame for its own code: its functions have rows all the same.
static void test_debug_frame(void)
{
	char path[PATH_MAX];
	ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 64);
	struct stall_symbols *symbols = NULL;
	struct stall_cfi *cfi = NULL;
	bool bad;

	path[n < 0 ? 0 : n] = 0;
	char *slash = strrchr(path, '/');
	strcpy(slash ? slash : path, "/../targets/target-threads-debugframe");
	if (access(path, R_OK) < 0) {
		printf("skipped: %s is not built\n", path);
		return;
	}
	struct stall_elf *elf = open_elf(path);
	CHECK_OK(stall_cfi_create(elf, NULL, &cfi));
	CHECK_OK(stall_symbols_create(elf, NULL, &symbols));
	CHECK(strcmp(stall_cfi_source(cfi), "both") == 0 ||
	      strcmp(stall_cfi_source(cfi), ".debug_frame") == 0);
	size_t functions = 0;
	for (uint64_t address = 0; address < 0x10000; address += 16) {
		struct stall_symbol symbol;

		if (!stall_symbols_find_function(symbols, address, &symbol))
			continue;
		if (strcmp(symbol.linkage, "main") == 0) {
			const struct stall_row *row = stall_cfi_row(cfi, address, &bad);

			CHECK(row && !bad);
			functions++;
		}
		free(symbol.linkage);
	}
	CHECK(functions > 0);
	stall_symbols_destroy(symbols);
	stall_cfi_destroy(cfi);
	stall_elf_destroy(elf);
}

static bool libdw_covers(Dwarf_CFI *cfi, uint64_t address)
{
	Dwarf_Frame *frame;

	if (dwarf_cfi_addrframe(cfi, address, &frame) != 0)
		return false;
	free(frame);
	return true;
}

// What is kept from libdw in sound files is nothing.
static void test_all_of(const char *path)
{
	struct stall_elf *elf = open_elf(path);
	struct stall_cfi *cfi = NULL;
	size_t covered = 0, missed = 0;
	bool bad;

	elf_version(EV_CURRENT);
	Elf *whole = elf_begin(elf->fd, ELF_C_READ, NULL);
	Dwarf_CFI *eh_frame = dwarf_getcfi_elf(whole);
	CHECK(eh_frame);
	CHECK_OK(stall_cfi_create(elf, NULL, &cfi));
	for (size_t i = 0; i < elf->segment_count; i++) {
		const Elf64_Phdr *load = &elf->segments[i];

		if (load->p_type != PT_LOAD || !(load->p_flags & PF_X))
			continue;
		for (uint64_t at = load->p_vaddr; at < load->p_vaddr + load->p_filesz; at += 61) {
			bool expected = libdw_covers(eh_frame, at);

			covered += expected;
			missed += expected != (bool)stall_cfi_row(cfi, at, &bad) || bad;
		}
	}
	CHECK(covered > 1000);
	CHECK_INT(missed, 0);
	stall_cfi_destroy(cfi);
	dwarf_cfi_end(eh_frame);
	elf_end(whole);
	stall_elf_destroy(elf);
}

// By default the C library; others can be given.
static void test_sound_files(int count, char **paths)
{
	Dl_info libc = {};

	for (int i = 0; i < count; i++)
		test_all_of(paths[i]);
	if (count)
		return;
	CHECK(dladdr((void *)(uintptr_t)qsort, &libc));
	test_all_of(libc.dli_fname);
}

int main(int argc, char **argv)
{
	test_rows_of_self();
	test_hostile_programs();
	test_hostile_tables();
	test_debug_frame();
	test_sound_files(argc - 1, argv + 1);
	return check_done();
}
