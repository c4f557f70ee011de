// SPDX-License-Identifier: Apache-2.0
// test-cfi_libdw [FILE...]: the rows of all functions of each file against libdw's; by default of
// the C and the C++ library.
#include <dlfcn.h>
#include <dwarf.h>
#include <elfutils/libdw.h>
#include <fcntl.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "check.h"
#include "snapshot/snapshot.h"
#include "unwind/cfi.h"

#define MAX_SHOWN 10
#define ROWS_AT_ONCE 100000 // rows are kept: of a whole server they would take gigabytes

struct comparison {
	struct stall_elf *elf;
	struct stall_cfi *cfi;
	Elf *whole;
	Dwarf *dwarf;
	Dwarf_CFI *eh_frame, *debug_frame; // NULL: there is none
	size_t rows, uncovered, different;
	uint64_t our_ns, libdw_ns; // of covered addresses
};

static bool survives_calls(uint8_t reg)
{
	return reg == STALL_REG_RBX || reg == STALL_REG_RBP || (reg >= 12 && reg <= 15);
}

// libdw decodes expressions, and puts an operation of its own before those of registers.
static bool is_same_expression(const Dwarf_Op *ops, size_t count, const uint8_t *code, size_t size)
{
	bool is_value = ops[count - 1].atom == DW_OP_stack_value;
	size_t first = ops[0].atom == DW_OP_call_frame_cfa, at = 0;

	if (count - is_value <= first)
		return false;
	for (size_t i = first; i < count - is_value; i++) {
		at = ops[i].offset;
		if (at >= size || code[at] != ops[i].atom)
			return false;
	}
	return size - at <= 11; // one operation, with two numbers at most
}

static bool is_same_cfa(Dwarf_Frame *frame, const struct stall_row *row)
{
	Dwarf_Op *ops;
	size_t count;

	if (dwarf_frame_cfa(frame, &ops, &count) != 0 || count == 0)
		return false;
	if (row->cfa_expression)
		return is_same_expression(ops, count, row->cfa_expression, row->cfa_size);
	return count == 1 && ops->atom == DW_OP_bregx && ops->number == row->cfa_reg &&
	       (int64_t)ops->number2 == row->cfa_offset;
}

// libdw writes "at CFA + N" and "is CFA + N" as expressions.
static bool is_same_offset(const Dwarf_Op *ops, size_t count, const struct stall_rule *rule)
{
	bool is_value = ops[count - 1].atom == DW_OP_stack_value;
	size_t n = count - is_value;

	if (is_value != (rule->kind == STALL_RULE_VAL_OFFSET))
		return false;
	if (ops[0].atom != DW_OP_call_frame_cfa || n > 2 ||
	    (n == 2 && ops[1].atom != DW_OP_plus_uconst))
		return false;
	return rule->offset == (n == 2 ? (int64_t)ops[1].number : 0);
}

static bool is_same_rule(Dwarf_Frame *frame, uint8_t reg, const struct stall_rule *rule)
{
	Dwarf_Op memory[3], *ops;
	size_t count;

	if (dwarf_frame_register(frame, reg, memory, &ops, &count) != 0)
		return false;
	// The default: libdw's table of callee-saved registers has rax for rbx (elfutils 0.188,
	// backends/x86_64_cfi.c), and a missing rule is not distinguished from "the same".
	if (count == 0 && reg != STALL_REG_PC)
		return survives_calls(reg) ? rule && rule->kind == STALL_RULE_SAME : !rule;
	if (count == 0)
		return rule && rule->kind == STALL_RULE_UNDEFINED && ops != NULL;
	if (!rule)
		return reg == STALL_REG_SP && count == 2 && ops[0].atom == DW_OP_call_frame_cfa &&
		       ops[1].atom == DW_OP_stack_value; // libdw's default
	switch (rule->kind) {
	case STALL_RULE_OFFSET:
	case STALL_RULE_VAL_OFFSET:
		return is_same_offset(ops, count, rule);
	case STALL_RULE_REGISTER:
		return count == 1 && ops->atom == DW_OP_regx && ops->number == rule->other;
	case STALL_RULE_EXPRESSION:
	case STALL_RULE_VAL_EXPRESSION:
		return (ops[count - 1].atom == DW_OP_stack_value) ==
			       (rule->kind == STALL_RULE_VAL_EXPRESSION) &&
		       is_same_expression(ops, count, rule->expression, rule->size);
	default:
		return false;
	}
}

static const struct stall_rule *rule_of(const struct stall_row *row, uint8_t reg)
{
	for (uint8_t i = 0; i < row->rule_count; i++) {
		if (row->rules[i].reg == reg)
			return &row->rules[i];
	}
	return NULL;
}

// -1: the same; -2: the CFA differs; -3: the kind of frame; else the register that differs.
static int difference(Dwarf_Frame *frame, const struct stall_row *row)
{
	bool signal;

	if (dwarf_frame_info(frame, NULL, NULL, &signal) != STALL_REG_PC || signal != row->signal)
		return -3;
	if (!is_same_cfa(frame, row))
		return -2;
	for (uint8_t reg = 0; reg < STALL_REGS; reg++) {
		if (!is_same_rule(frame, reg, rule_of(row, reg)))
			return reg;
	}
	return -1;
}

static void report(struct comparison *c, uint64_t address, int what)
{
	if (c->different++ < MAX_SHOWN)
		fprintf(stderr, "%#llx: %s differs (%d)\n", (unsigned long long)address,
			what == -3   ? "the kind of frame"
			: what == -2 ? "the CFA"
			: what < 0   ? "whether it is covered"
				     : "a register",
			what);
}

static void compare_at(struct comparison *c, Dwarf_Frame *frame, uint64_t address)
{
	bool bad;
	const struct stall_row *row = stall_cfi_row(c->cfi, address, &bad);
	int what = row ? difference(frame, row) : -4;

	if (bad || what != -1)
		report(c, address, what);
}

static bool ask_libdw(const struct comparison *c, uint64_t address, Dwarf_Frame **ret)
{
	return dwarf_cfi_addrframe(c->eh_frame, address, ret) == 0 ||
	       dwarf_cfi_addrframe(c->debug_frame, address, ret) == 0;
}

// Both know the address already.
static void measure(struct comparison *c, uint64_t address)
{
	Dwarf_Frame *frame = NULL;
	bool bad;
	uint64_t begun = stall_clock_ns(CLOCK_THREAD_CPUTIME_ID);

	ask_libdw(c, address, &frame);
	uint64_t found = stall_clock_ns(CLOCK_THREAD_CPUTIME_ID);
	stall_cfi_row(c->cfi, address, &bad);
	c->our_ns += stall_clock_ns(CLOCK_THREAD_CPUTIME_ID) - found;
	c->libdw_ns += found - begun;
	free(frame);
}

// Returns the first address that the row does not describe.
static uint64_t compare_row(struct comparison *c, uint64_t address)
{
	Dwarf_Addr start, end;
	Dwarf_Frame *frame;
	bool bad;

	if (!ask_libdw(c, address, &frame)) {
		c->uncovered++;
		if (stall_cfi_row(c->cfi, address, &bad) || bad)
			report(c, address, -4);
		return address + 1;
	}
	dwarf_frame_info(frame, &start, &end, NULL);
	compare_at(c, frame, address);
	compare_at(c, frame, end - 1);
	free(frame);
	measure(c, address);
	if (++c->rows % ROWS_AT_ONCE == 0) {
		stall_cfi_destroy(c->cfi);
		CHECK_OK(stall_cfi_create(c->elf, NULL, &c->cfi));
	}
	return end > address ? end : address + 1;
}

static void compare_file(const char *path)
{
	struct comparison c = {};
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	CHECK(fd >= 0);
	if (fd < 0)
		return;
	CHECK_OK(stall_elf_open(fd, &c.elf));
	CHECK_OK(stall_cfi_create(c.elf, NULL, &c.cfi));
	elf_version(EV_CURRENT);
	c.whole = elf_begin(fd, ELF_C_READ, NULL);
	c.eh_frame = dwarf_getcfi_elf(c.whole);
	c.dwarf = dwarf_begin_elf(c.whole, DWARF_C_READ, NULL);
	c.debug_frame = c.dwarf ? dwarf_getcfi(c.dwarf) : NULL;
	CHECK(c.eh_frame || c.debug_frame);
	for (size_t i = 0; i < c.elf->segment_count; i++) {
		const Elf64_Phdr *load = &c.elf->segments[i];

		if (load->p_type != PT_LOAD || !(load->p_flags & PF_X))
			continue;
		for (uint64_t at = load->p_vaddr; at < load->p_vaddr + load->p_filesz;)
			at = compare_row(&c, at);
	}
	printf("%s: %zu rows, %zu bytes without; %.0f ns a row, libdw %.0f ns\n", path, c.rows,
	       c.uncovered, (double)c.our_ns / (double)c.rows, (double)c.libdw_ns / (double)c.rows);
	CHECK(c.rows > 100);
	CHECK_INT(c.different, 0);
	stall_cfi_destroy(c.cfi);
	dwarf_cfi_end(c.eh_frame);
	dwarf_end(c.dwarf);
	elf_end(c.whole);
	stall_elf_destroy(c.elf);
}

static void compare_libraries(void)
{
	static const char *const libraries[][2] = {{"libc.so.6", "qsort"},
						   {"libstdc++.so.6", "__cxa_demangle"}};

	for (size_t i = 0; i < sizeof(libraries) / sizeof(libraries[0]); i++) {
		void *library = dlopen(libraries[i][0], RTLD_NOW);
		void *function = library ? dlsym(library, libraries[i][1]) : NULL;
		Dl_info file = {};

		CHECK(function && dladdr(function, &file));
		if (file.dli_fname)
			compare_file(file.dli_fname);
	}
}

int main(int argc, char **argv)
{
	for (int i = 1; i < argc; i++)
		compare_file(argv[i]);
	if (argc == 1)
		compare_libraries();
	return check_done();
}
