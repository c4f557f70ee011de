// SPDX-License-Identifier: Apache-2.0
// Rows of sound unwind information and of damaged one; test_cfi_libdw.c compares whole files.
#include <fcntl.h>
#include <stdlib.h>
#include <zlib.h>
#include <zstd.h>

#include "base/cleanup.h"
#include "cfi_image.h"
#include "check.h"
#include "snapshot/snapshot.h"
#include "unwind/cfi.h"
#include "unwind/dwarf_codes.h"

// A function that is looked up.
void cfi_sample(void);
void cfi_sample(void)
{
}

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

// Bytes of a section, in the making.
struct section {
	uint8_t data[512];
	size_t size;
	bool is_eh_frame;
};

static void put(struct section *section, const void *data, size_t size)
{
	if (size)
		memcpy(section->data + section->size, data, size);
	section->size += size;
}

static void put_number(struct section *section, uint64_t value, size_t size)
{
	put(section, &value, size);
}

#define BYTES(...) (const uint8_t[]){__VA_ARGS__}, sizeof((const uint8_t[]){__VA_ARGS__})

// The length is put in by end_entry().
static size_t begin_entry(struct section *section)
{
	put_number(section, 0, 4);
	return section->size;
}

static void end_entry(struct section *section, size_t start)
{
	uint32_t length = (uint32_t)(section->size - start);

	memcpy(section->data + start - 4, &length, sizeof(length));
}

// Versions 1 and 3; CFA = rsp + 8, the return address at CFA - 8. `data` stands for "z".
static void put_cie(struct section *section, uint8_t version, const char *augmentation,
		    const uint8_t *data, size_t size)
{
	size_t start = begin_entry(section);

	put_number(section, section->is_eh_frame ? 0 : UINT32_MAX, 4);
	put_number(section, version, 1);
	put(section, augmentation, strlen(augmentation) + 1);
	if (version == 4)
		put(section, BYTES(8, 0));
	put(section, BYTES(1, 0x78, 16)); // code and data alignment, return address
	if (*augmentation == 'z')
		put_number(section, size, 1);
	put(section, data, size);
	put(section, BYTES(DW_CFA_def_cfa, 7, 8, DW_CFA_offset | 16, 1));
	end_entry(section, start);
}

// Of the CIE at offset 0.
static void put_fde(struct section *section, uint64_t address, uint64_t range, bool has_data,
		    const uint8_t *program, size_t size)
{
	size_t start = begin_entry(section);

	put_number(section, section->is_eh_frame ? section->size : 0, 4);
	put_number(section, address, 8);
	put_number(section, range, 8);
	if (has_data)
		put_number(section, 0, 1);
	put(section, program, size);
	end_entry(section, start);
}

// What is known of an address of the section.
struct answer {
	struct stall_cfi *cfi;
	struct stall_elf *elf;
	struct cfi_image *image;
	const struct stall_row *row;
	bool bad;
};

static void answer_deinit(struct answer *answer)
{
	stall_cfi_destroy(answer->cfi);
	stall_elf_destroy(answer->elf);
	free(answer->image);
}
#define _cleanup_answer_ _cleanup_(answer_deinit)

static struct answer ask_bytes(bool is_eh_frame, const uint8_t *data, size_t size, uint64_t flags,
			       uint64_t address)
{
	struct answer answer = {.image = cfi_image_create(is_eh_frame, data, size, flags)};

	CHECK_OK(stall_elf_open_image((const uint8_t *)answer.image, sizeof(*answer.image) + size,
				      false, &answer.elf));
	CHECK_OK(stall_cfi_create(answer.elf, NULL, &answer.cfi));
	answer.row = stall_cfi_row(answer.cfi, address, &answer.bad);
	return answer;
}

static struct answer ask(const struct section *section, uint64_t address)
{
	return ask_bytes(section->is_eh_frame, section->data, section->size, 0, address);
}

static struct answer run(const uint8_t *program, size_t size, uint64_t address)
{
	struct section section = {};

	put_cie(&section, 1, "", NULL, 0);
	put_fde(&section, 0x1000, 0x1000, false, program, size);
	return ask(&section, address);
}

// What the program says of rbx at 0x1010, by its rule.
#define CHECK_RBX(expected_kind, expected_offset, ...)                                             \
	do {                                                                                       \
		_cleanup_answer_ struct answer answer_ = run(BYTES(__VA_ARGS__), 0x1010);          \
		const struct stall_rule *rule_ = rule_of(answer_.row, STALL_REG_RBX);              \
		CHECK(answer_.row && !answer_.bad);                                                \
		CHECK_INT(rule_ ? rule_->kind : STALL_RULE_UNDEFINED, expected_kind);              \
		if (rule_)                                                                         \
			CHECK_INT(rule_->offset, expected_offset);                                 \
	} while (0)
#define CHECK_CFA(expected_reg, expected_offset, ...)                                              \
	do {                                                                                       \
		_cleanup_answer_ struct answer answer_ = run(BYTES(__VA_ARGS__), 0x1010);          \
		CHECK(answer_.row && !answer_.bad);                                                \
		CHECK_INT(answer_.row ? answer_.row->cfa_reg : -1, expected_reg);                  \
		CHECK_INT(answer_.row ? answer_.row->cfa_offset : -1, expected_offset);            \
	} while (0)
#define CHECK_BAD(...)                                                                             \
	do {                                                                                       \
		_cleanup_answer_ struct answer answer_ = run(BYTES(__VA_ARGS__), 0x1010);          \
		CHECK(!answer_.row && answer_.bad);                                                \
	} while (0)

static void test_rules(void)
{
	CHECK_RBX(STALL_RULE_SAME, 0, DW_CFA_nop);
	CHECK_RBX(STALL_RULE_OFFSET, -16, DW_CFA_offset | 3, 2);
	CHECK_RBX(STALL_RULE_OFFSET, -16, DW_CFA_offset_extended, 3, 2);
	CHECK_RBX(STALL_RULE_OFFSET, 16, DW_CFA_offset_extended_sf, 3, 0x7e);
	CHECK_RBX(STALL_RULE_OFFSET, 16, DW_CFA_GNU_negative_offset_extended, 3, 2);
	CHECK_RBX(STALL_RULE_VAL_OFFSET, -24, DW_CFA_val_offset, 3, 3);
	CHECK_RBX(STALL_RULE_VAL_OFFSET, 24, DW_CFA_val_offset_sf, 3, 0x7d);
	CHECK_RBX(STALL_RULE_UNDEFINED, 0, DW_CFA_undefined, 3);
	CHECK_RBX(STALL_RULE_SAME, 0, DW_CFA_undefined, 3, DW_CFA_same_value, 3);
	CHECK_RBX(STALL_RULE_SAME, 0, DW_CFA_offset | 3, 2, DW_CFA_restore | 3);
	CHECK_RBX(STALL_RULE_SAME, 0, DW_CFA_offset | 3, 2, DW_CFA_restore_extended, 3);
	// Registers that are not tracked, and what exceptions alone need.
	CHECK_RBX(STALL_RULE_SAME, 0, DW_CFA_undefined, 0xff, 0x01, DW_CFA_GNU_args_size, 16,
		  DW_CFA_register, 0x80, 0x80, 0x80, 0x20, 1, DW_CFA_offset_extended, 0x81, 0x80,
		  0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x10, 0);
	_cleanup_answer_ struct answer answer =
		run(BYTES(DW_CFA_register, 3, 12, DW_CFA_register, 6, 40, DW_CFA_expression, 13, 2,
			  DW_OP_breg0 + 7, 8, DW_CFA_val_expression, 14, 1, DW_OP_lit0),
		    0x1010);
	CHECK(answer.row && !answer.bad);
	CHECK_INT(rule_of(answer.row, STALL_REG_RBX)->kind, STALL_RULE_REGISTER);
	CHECK_INT(rule_of(answer.row, STALL_REG_RBX)->other, 12);
	CHECK(!rule_of(answer.row, STALL_REG_RBP)); // is in one that is not tracked
	CHECK_INT(rule_of(answer.row, 13)->kind, STALL_RULE_EXPRESSION);
	CHECK_INT(rule_of(answer.row, 13)->size, 2);
	CHECK_INT(rule_of(answer.row, 13)->expression[1], 8);
	CHECK_INT(rule_of(answer.row, 14)->kind, STALL_RULE_VAL_EXPRESSION);
	CHECK(!rule_of(answer.row, 0)); // rax does not survive
}

static bool starts(const char *augmentation, bool is_eh_frame, bool is_own, uint64_t address)
{
	struct section section = {.is_eh_frame = is_eh_frame};

	put_cie(&section, 1, augmentation, NULL, 0);
	put_fde(&section, 0x1000, 0x1000, *augmentation, NULL, 0);
	_cleanup_answer_ struct answer answer = ask(&section, address);
	stall_cfi_destroy(answer.cfi);
	_cleanup_free_ struct cfi_image *other = cfi_image_create(true, (const uint8_t *)"", 0, 0);
	_cleanup_(stall_elf_destroyp) struct stall_elf *elf = NULL;
	CHECK_OK(stall_elf_open_image((const uint8_t *)other, sizeof(*other), false, &elf));
	CHECK_OK(stall_cfi_create(is_own ? answer.elf : elf, is_own ? NULL : answer.elf,
				  &answer.cfi));
	return stall_cfi_starts_at(answer.cfi, address);
}

// Nothing but the start of a function of the file itself.
static void test_starts(void)
{
	CHECK(starts("", true, true, 0x1000));
	CHECK(starts("", false, true, 0x1000));
	CHECK(!starts("", false, false, 0x1000));
	CHECK(!starts("", true, true, 0x1001));
	CHECK(!starts("", true, true, 0x1fff));
	CHECK(!starts("", true, true, 0xfff));
	CHECK(!starts("zS", true, true, 0x1000));
}

static void test_cfa(void)
{
	CHECK_CFA(7, 8, DW_CFA_nop);
	CHECK_CFA(6, 16, DW_CFA_def_cfa, 6, 16);
	CHECK_CFA(6, 16, DW_CFA_def_cfa_sf, 6, 0x7e);
	CHECK_CFA(6, 8, DW_CFA_def_cfa_register, 6);
	CHECK_CFA(7, 300, DW_CFA_def_cfa_offset, 0xac, 0x02);
	CHECK_CFA(7, -8, DW_CFA_def_cfa_offset_sf, 1);
	CHECK_CFA(7, 8, DW_CFA_remember_state, DW_CFA_def_cfa, 6, 16, DW_CFA_restore_state);
	_cleanup_answer_ struct answer answer =
		run(BYTES(DW_CFA_def_cfa_expression, 2, DW_OP_breg0 + 7, 8), 0x1010);
	CHECK(answer.row && answer.row->cfa_expression);
	CHECK_INT(answer.row ? answer.row->cfa_size : 0, 2);
	// What changes one half of a register and an offset needs both.
	CHECK_BAD(DW_CFA_def_cfa_expression, 1, DW_OP_lit0, DW_CFA_def_cfa_register, 6);
	CHECK_BAD(DW_CFA_def_cfa_expression, 1, DW_OP_lit0, DW_CFA_def_cfa_offset, 8);
	CHECK_BAD(DW_CFA_def_cfa_expression, 1, DW_OP_lit0, DW_CFA_def_cfa_offset_sf, 8);
	CHECK_BAD(DW_CFA_def_cfa_register, 17); // is not tracked
}

// An instruction counts from its location on, at 0x1010 here.
static void test_locations(void)
{
	CHECK_CFA(7, 1, DW_CFA_advance_loc | 16, DW_CFA_def_cfa_offset, 1);
	CHECK_CFA(7, 8, DW_CFA_advance_loc | 17, DW_CFA_def_cfa_offset, 1);
	CHECK_CFA(7, 1, DW_CFA_advance_loc1, 16, DW_CFA_def_cfa_offset, 1);
	CHECK_CFA(7, 8, DW_CFA_advance_loc1, 17, DW_CFA_def_cfa_offset, 1);
	CHECK_CFA(7, 1, DW_CFA_advance_loc2, 16, 0, DW_CFA_def_cfa_offset, 1);
	CHECK_CFA(7, 8, DW_CFA_advance_loc2, 0, 1, DW_CFA_def_cfa_offset, 1);
	CHECK_CFA(7, 1, DW_CFA_advance_loc4, 16, 0, 0, 0, DW_CFA_def_cfa_offset, 1);
	CHECK_CFA(7, 8, DW_CFA_advance_loc4, 0, 0, 0, 0xff, DW_CFA_def_cfa_offset, 1);
	CHECK_CFA(7, 8, DW_CFA_MIPS_advance_loc8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
		  DW_CFA_def_cfa_offset, 1);
	CHECK_CFA(7, 1, DW_CFA_set_loc, 0x10, 0x10, 0, 0, 0, 0, 0, 0, DW_CFA_def_cfa_offset, 1);
	CHECK_CFA(7, 8, DW_CFA_set_loc, 0x11, 0x10, 0, 0, 0, 0, 0, 0, DW_CFA_def_cfa_offset, 1);
	// What comes after the address is not even read.
	CHECK_CFA(7, 8, DW_CFA_advance_loc | 17, 0x3f);
}

static void test_return_address(void)
{
	_cleanup_answer_ struct answer outermost =
		run(BYTES(DW_CFA_undefined, STALL_REG_PC), 0x1010);
	_cleanup_answer_ struct answer elsewhere =
		run(BYTES(DW_CFA_register, STALL_REG_PC, 5), 0x1010); // as in glibc's vfork

	CHECK_INT(rule_of(outermost.row, STALL_REG_PC)->kind, STALL_RULE_UNDEFINED);
	CHECK_INT(rule_of(elsewhere.row, STALL_REG_PC)->kind, STALL_RULE_REGISTER);
	CHECK_INT(rule_of(elsewhere.row, STALL_REG_PC)->other, 5);
	// Its caller would be where it is itself, forever.
	CHECK_BAD(DW_CFA_same_value, STALL_REG_PC);
	CHECK_BAD(DW_CFA_register, STALL_REG_PC, STALL_REG_PC);
	CHECK_BAD(DW_CFA_register, STALL_REG_PC, 17);
}

static void test_hostile_programs(void)
{
	uint8_t states[66];

	CHECK_BAD(DW_CFA_restore_state);
	CHECK_BAD(0x3f);
	CHECK_BAD(0x2d); // of other processors
	CHECK_BAD(DW_CFA_def_cfa_offset, 0x80);
	CHECK_BAD(DW_CFA_def_cfa_offset, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80,
		  1);
	CHECK_BAD(DW_CFA_advance_loc4, 0, 0, 0);
	CHECK_BAD(DW_CFA_set_loc, 0, 0, 0, 0, 0, 0, 0);
	CHECK_BAD(DW_CFA_def_cfa_expression, 2, DW_OP_breg0 + 7);
	CHECK_BAD(DW_CFA_expression, 3, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f);
	memset(states, DW_CFA_remember_state, sizeof(states));
	for (size_t size = 64; size <= 65; size++) {
		_cleanup_answer_ struct answer answer = run(states, size, 0x1010);

		CHECK_INT((bool)answer.row, size == 64);
	}
	for (uint32_t size = 65536; size <= 65537; size++) {
		struct section section = {};

		put_cie(&section, 1, "", NULL, 0);
		size_t start = section.size + 4;
		put_fde(&section, 0x1000, 0x1000, false, NULL, 0);
		size_t whole = section.size + size;
		uint8_t *data = calloc(1, whole);
		uint32_t length = (uint32_t)(whole - start);
		memcpy(data, section.data, section.size);
		memcpy(data + start - 4, &length, 4);
		_cleanup_answer_ struct answer answer = ask_bytes(false, data, whole, 0, 0x1010);
		CHECK_INT((bool)answer.row, size == 65536);
		CHECK_INT(answer.bad, size != 65536);
		free(data);
	}
}

// A CIE's own program may only say how functions begin.
static void test_programs_of_cies(void)
{
	static const uint8_t refused[] = {DW_CFA_advance_loc | 1, DW_CFA_restore | 3,
					  DW_CFA_restore_state};

	for (size_t i = 0; i < sizeof(refused); i++) {
		struct section section = {};

		put_cie(&section, 1, "", NULL, 0);
		put(&section, &refused[i], 1);
		end_entry(&section, 4);
		put_fde(&section, 0x1000, 0x1000, false, NULL, 0);
		_cleanup_answer_ struct answer answer = ask(&section, 0x1000);
		CHECK(!answer.row && answer.bad);
	}
}

static bool augmentation_is_read(uint8_t version, const char *letters, const uint8_t *data,
				 size_t size, bool *ret_signal)
{
	struct section section = {.is_eh_frame = true};

	put_cie(&section, version, letters, data, size);
	put_fde(&section, 0x1000, 0x1000, *letters == 'z', NULL, 0);
	_cleanup_answer_ struct answer answer = ask(&section, 0x1000);
	CHECK(answer.row || answer.bad);
	*ret_signal = answer.row && answer.row->signal;
	return answer.row && answer.row->cfa_offset == 8;
}

#define CHECK_AUGMENTATION(expected, letters, ...)                                                 \
	CHECK_INT(augmentation_is_read(1, letters, BYTES(__VA_ARGS__), &signal), expected)

static void test_augmentations(void)
{
	bool signal;

	CHECK(augmentation_is_read(1, "", NULL, 0, &signal) && !signal);
	CHECK(augmentation_is_read(3, "z", NULL, 0, &signal) && !signal);
	CHECK(augmentation_is_read(4, "z", NULL, 0, &signal) && !signal);
	CHECK(augmentation_is_read(1, "zS", NULL, 0, &signal) && signal);
	CHECK(augmentation_is_read(1, "zB", NULL, 0, &signal) && !signal);
	CHECK(!augmentation_is_read(2, "z", NULL, 0, &signal));
	CHECK(!augmentation_is_read(5, "z", NULL, 0, &signal));
	CHECK_AUGMENTATION(true, "zR", DW_EH_PE_absptr);
	CHECK_AUGMENTATION(true, "zR", DW_EH_PE_absptr, 1, 2, 3); // more than it needs
	CHECK_AUGMENTATION(true, "zPLR", 0x9b, 1, 2, 3, 4, 0x1b, DW_EH_PE_udata8);
	CHECK_AUGMENTATION(true, "zPR", DW_EH_PE_uleb128, 0x80, 1, DW_EH_PE_sdata8);
	CHECK_AUGMENTATION(false, "zR");
	CHECK_AUGMENTATION(false, "zP", DW_EH_PE_udata8, 1, 2, 3);
	CHECK_AUGMENTATION(false, "zP", 0x0d, 1, 2, 3);
	CHECK_AUGMENTATION(false, "zX", 0);
	CHECK_AUGMENTATION(false, "eh");
	CHECK_AUGMENTATION(false, "armcc+");
	CHECK_AUGMENTATION(true, "zSSSSSSSSSSSSSSS");
	CHECK_AUGMENTATION(false, "zSSSSSSSSSSSSSSSSSS");
	// Addresses that count from what the file does not say, or stand somewhere else.
	CHECK_AUGMENTATION(false, "zR", 0x20);
	CHECK_AUGMENTATION(false, "zR", DW_EH_PE_datarel);
	CHECK_AUGMENTATION(false, "zR", 0x40);
	CHECK_AUGMENTATION(false, "zR", DW_EH_PE_aligned);
	CHECK_AUGMENTATION(false, "zR", 0x80);
}

// A function at 0x1000, of 0x20 bytes, in each encoding.
static void test_pointers(void)
{
	static const struct {
		uint8_t encoding;
		size_t size;
	} cases[] = {{DW_EH_PE_udata2, 2},
		     {DW_EH_PE_udata4, 4},
		     {DW_EH_PE_udata8, 8},
		     {DW_EH_PE_sdata2, 2},
		     {DW_EH_PE_sdata4, 4},
		     {DW_EH_PE_sdata8, 8},
		     {DW_EH_PE_pcrel | DW_EH_PE_sdata4, 4},
		     {DW_EH_PE_pcrel | DW_EH_PE_sdata8, 8},
		     {DW_EH_PE_uleb128, 0}};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct section section = {.is_eh_frame = true};

		put_cie(&section, 1, "zR", &cases[i].encoding, 1);
		size_t start = begin_entry(&section), size = cases[i].size;
		put_number(&section, section.size, 4);
		uint64_t base =
			cases[i].encoding & DW_EH_PE_pcrel ? CFI_IMAGE_ADDRESS + section.size : 0;
		if (size) {
			put_number(&section, 0x1000 - base, size);
			put_number(&section, 0x20, size);
		} else {
			put(&section, BYTES(0x80, 0x20, 0x20));
		}
		put_number(&section, 0, 1);
		end_entry(&section, start);
		for (uint64_t address = 0xfff; address <= 0x1020; address++) {
			_cleanup_answer_ struct answer answer = ask(&section, address);
			bool expected = address >= 0x1000 && address < 0x1020;

			CHECK_INT((bool)answer.row, expected);
			CHECK(!answer.bad);
		}
	}
}

// Without a table the entries may have any order, and empty ones are skipped.
static void test_walk(void)
{
	struct section section = {.is_eh_frame = true};

	put_cie(&section, 1, "", NULL, 0);
	put_fde(&section, 0x3000, 0x10, false, BYTES(DW_CFA_def_cfa_offset, 3));
	put_fde(&section, 0x1000, 0x10, false, BYTES(DW_CFA_def_cfa_offset, 1));
	put_fde(&section, 0x3000, 0, false, BYTES(DW_CFA_def_cfa_offset, 9));
	put_fde(&section, 0x2000, 0x10, false, BYTES(DW_CFA_def_cfa_offset, 2));
	put_number(&section, 0, 4); // the end
	put_fde(&section, 0x4000, 0x10, false, BYTES(DW_CFA_def_cfa_offset, 4));
	for (uint64_t i = 1; i <= 4; i++) {
		_cleanup_answer_ struct answer first = ask(&section, i * 0x1000);
		_cleanup_answer_ struct answer last = ask(&section, i * 0x1000 + 15);
		_cleanup_answer_ struct answer after = ask(&section, i * 0x1000 + 16);

		CHECK_INT(first.row ? first.row->cfa_offset : 0, i < 4 ? i : 0);
		CHECK_INT(last.row ? last.row->cfa_offset : 0, i < 4 ? i : 0);
		CHECK(!after.row && !first.bad && !last.bad && !after.bad);
	}
}

// Functions next to a damaged one are found; what is not found may be the damaged one.
static void test_damaged_walk(void)
{
	struct section section = {.is_eh_frame = true};

	put_cie(&section, 1, "", NULL, 0);
	size_t damaged = section.size + 4;
	put_fde(&section, 0x1000, 0x10, false, NULL, 0);
	put_fde(&section, 0x2000, 0x10, false, NULL, 0);
	section.data[damaged] += 4; // it is its own CIE
	_cleanup_answer_ struct answer lost = ask(&section, 0x1000);
	_cleanup_answer_ struct answer found = ask(&section, 0x2000);
	_cleanup_answer_ struct answer beyond = ask(&section, 0x3000);
	CHECK(!lost.row && lost.bad);
	CHECK(found.row && !found.bad);
	CHECK(!beyond.row && beyond.bad);
	// The last one is cut.
	section.data[damaged] -= 4;
	section.size -= 4;
	_cleanup_answer_ struct answer before = ask(&section, 0x1000);
	_cleanup_answer_ struct answer cut = ask(&section, 0x2000);
	CHECK(before.row && !before.bad);
	CHECK(!cut.row && cut.bad);
	// Ends beyond the address space.
	section.size = 0;
	put_cie(&section, 1, "", NULL, 0);
	put_fde(&section, 0x1000, UINT64_MAX, false, NULL, 0);
	_cleanup_answer_ struct answer endless = ask(&section, 0x2000);
	CHECK(!endless.row && endless.bad);
}

// DWARF of 64 bits: longer lengths; in .debug_frame longer offsets too.
static void test_long_entries(void)
{
	for (int is_eh_frame = 0; is_eh_frame < 2; is_eh_frame++) {
		struct section section = {.is_eh_frame = is_eh_frame};
		size_t id_size = is_eh_frame ? 4 : 8;

		put_number(&section, UINT32_MAX, 4);
		put_number(&section, id_size + 10, 8);
		put_number(&section, is_eh_frame ? 0 : UINT64_MAX, id_size);
		put(&section,
		    BYTES(1, 0, 1, 0x78, 16, DW_CFA_def_cfa, 7, 8, DW_CFA_offset | 16, 1));
		put_number(&section, UINT32_MAX, 4);
		put_number(&section, id_size + 16, 8);
		put_number(&section, is_eh_frame ? section.size : 0, id_size);
		put_number(&section, 0x1000, 8);
		put_number(&section, 0x10, 8);
		_cleanup_answer_ struct answer answer = ask(&section, 0x1008);
		CHECK(answer.row && !answer.bad);
		CHECK_STRING(stall_cfi_source(answer.cfi),
			     is_eh_frame ? ".eh_frame" : ".debug_frame");
	}
}

// As debug files of distributions have it.
static void test_compressed(void)
{
	for (uint32_t kind = ELFCOMPRESS_ZLIB; kind <= 3; kind++) {
		struct section section = {};
		uint8_t packed[1024];
		Elf64_Chdr header = {.ch_type = kind};

		put_cie(&section, 1, "", NULL, 0);
		put_fde(&section, 0x1000, 0x10, false, NULL, 0);
		header.ch_size = section.size;
		memcpy(packed, &header, sizeof(header));
		uLongf size = sizeof(packed) - sizeof(header);
		if (kind == ELFCOMPRESS_ZLIB)
			compress(packed + sizeof(header), &size, section.data, section.size);
		else
			size = ZSTD_compress(packed + sizeof(header), size, section.data,
					     section.size, 3);
		size += sizeof(header);
		_cleanup_answer_ struct answer sound =
			ask_bytes(false, packed, size, SHF_COMPRESSED, 0x1000);
		CHECK_INT((bool)sound.row, kind < 3); // there are two kinds
		_cleanup_answer_ struct answer cut =
			ask_bytes(false, packed, size - 1, SHF_COMPRESSED, 0x1000);
		CHECK(!cut.row);
		header.ch_size = section.size + 1;
		memcpy(packed, &header, sizeof(header));
		_cleanup_answer_ struct answer short_one =
			ask_bytes(false, packed, size, SHF_COMPRESSED, 0x1000);
		CHECK(!short_one.row);
		_cleanup_answer_ struct answer torn =
			ask_bytes(false, packed, 5, SHF_COMPRESSED, 0x1000);
		CHECK(!torn.row);
	}
}

// The program itself in memory, with its search table damaged.
enum damage { NOTHING, LONGER, DISORDER, NO_SECTIONS, NO_SECTIONS_AND_DISORDER, ASTRAY };

static void damage_table(enum damage damage, Elf64_Ehdr *ehdr, uint32_t *count, int32_t *table)
{
	if (damage == LONGER)
		*count += 1;
	if (damage == DISORDER || damage == NO_SECTIONS_AND_DISORDER)
		table[0] = INT32_MAX;
	if (damage == NO_SECTIONS || damage == NO_SECTIONS_AND_DISORDER)
		ehdr->e_shoff = ehdr->e_shnum = 0;
	for (uint32_t i = 0; damage == ASTRAY && i < *count; i++)
		table[2 * i + 1] = INT32_MAX;
}

static bool finds_sample(enum damage damage, bool *ret_bad)
{
	struct stall_elf *elf = open_elf("/proc/self/exe"), *copy = NULL;
	uint64_t address = (uint64_t)(uintptr_t)cfi_sample - bias_of_self(elf);
	const Elf64_Shdr *header = stall_elf_section(elf, ".eh_frame_hdr");
	struct stall_cfi *cfi = NULL;
	uint8_t *image = NULL;

	CHECK_OK(stall_elf_load(elf, 0, elf->size, SIZE_MAX, &image));
	damage_table(damage, (Elf64_Ehdr *)image, (uint32_t *)(image + header->sh_offset + 8),
		     (int32_t *)(image + header->sh_offset + 12));
	CHECK_OK(stall_elf_open_image(image, elf->size, true, &copy));
	CHECK_OK(stall_cfi_create(copy, NULL, &cfi));
	bool found = stall_cfi_row(cfi, address, ret_bad);
	stall_cfi_destroy(cfi);
	stall_elf_destroy(copy);
	stall_elf_destroy(elf);
	return found;
}

static void test_hostile_tables(void)
{
	bool bad;

	// Without the table one entry after the other is read.
	for (enum damage damage = NOTHING; damage < ASTRAY; damage++)
		CHECK(finds_sample(damage, &bad) && !bad);
	CHECK(!finds_sample(ASTRAY, &bad) && bad);
}

int main(void)
{
	test_rules();
	test_starts();
	test_cfa();
	test_locations();
	test_return_address();
	test_hostile_programs();
	test_programs_of_cies();
	test_augmentations();
	test_pointers();
	test_walk();
	test_damaged_walk();
	test_long_entries();
	test_compressed();
	test_hostile_tables();
	return check_done();
}
