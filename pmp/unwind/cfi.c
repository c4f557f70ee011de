// SPDX-License-Identifier: Apache-2.0
#include "cfi.h"

#include <dwarf.h>
#include <elfutils/libdw.h>
#include <libelf.h>
#include <stdlib.h>
#include <string.h>

#include "cleanup.h"
#include "expression.h"

#define MAX_FRAME_SECTION (256U << 20)

// What a row owns; freed with the file.
struct block {
	struct block *next;
	_Alignas(16) uint8_t data[];
};

struct stall_cfi {
	Elf *elf;
	Dwarf_CFI *eh_frame; // of `elf`
	bool has_debug_frame, tried_debug_frame;
	const struct stall_elf *debug_frame_file;
	uint8_t *frame_image; // an ELF file in memory that holds .debug_frame alone
	Elf *frame_elf;
	Dwarf *dwarf;
	Dwarf_CFI *debug_frame; // of `dwarf`
	struct block *blocks;
};

static bool has_section(const struct stall_elf *elf, const char *name)
{
	const Elf64_Shdr *section = elf ? stall_elf_section(elf, name) : NULL;

	return section && section->sh_type != SHT_NOBITS && section->sh_size;
}

static void cfi_destroyp(struct stall_cfi **cfi)
{
	stall_cfi_destroy(*cfi);
}

struct stall_error *stall_cfi_create(const struct stall_elf *elf, const struct stall_elf *debug,
				     struct stall_cfi **ret)
{
	_cleanup_(cfi_destroyp) struct stall_cfi *cfi = calloc(1, sizeof(*cfi));

	if (!cfi)
		return &stall_enomem;
	elf_version(EV_CURRENT);
	// READ, not MMAP: a file that shrinks must not raise SIGBUS.
	cfi->elf = elf->image ? elf_memory((char *)elf->image, elf->size)
			      : elf_begin(elf->fd, ELF_C_READ, NULL);
	if (!cfi->elf)
		return stall_error_create(STALL_ERROR_FORMAT, "libelf: %s", elf_errmsg(-1));
	// In a separate debug file the program headers still tell of .eh_frame, and lead elsewhere.
	const Elf64_Shdr *eh_frame = stall_elf_section(elf, ".eh_frame");
	if (!eh_frame || eh_frame->sh_type != SHT_NOBITS)
		cfi->eh_frame = dwarf_getcfi_elf(cfi->elf);
	cfi->debug_frame_file = has_section(elf, ".debug_frame")     ? elf
				: has_section(debug, ".debug_frame") ? debug
								     : NULL;
	cfi->has_debug_frame = cfi->debug_frame_file;
	*ret = no_cleanup_ptr(cfi);
	return NULL;
}

void stall_cfi_destroy(struct stall_cfi *cfi)
{
	if (!cfi)
		return;
	if (cfi->dwarf)
		dwarf_end(cfi->dwarf);
	elf_end(cfi->frame_elf);
	free(cfi->frame_image);
	if (cfi->eh_frame)
		dwarf_cfi_end(cfi->eh_frame);
	elf_end(cfi->elf);
	for (struct block *block = cfi->blocks, *next; block; block = next) {
		next = block->next;
		free(block);
	}
	free(cfi);
}

const char *stall_cfi_source(const struct stall_cfi *cfi)
{
	if (cfi->eh_frame)
		return cfi->has_debug_frame ? "both" : ".eh_frame";
	return cfi->has_debug_frame ? ".debug_frame" : "none";
}

// dwarf_begin_elf would read every .debug_* section, which for a server is hundreds of megabytes:
// it gets an ELF file with nothing but .debug_frame instead.
struct frame_image {
	Elf64_Ehdr ehdr;
	Elf64_Shdr sections[3]; // null, .debug_frame, .shstrtab
	char names[32];
	uint8_t data[];
};

static void fill_frame_image(struct frame_image *image, const Elf64_Shdr *section)
{
	static const char names[] = "\0.debug_frame\0.shstrtab";

	*image = (struct frame_image){
		.ehdr =
			{
				.e_ident = {ELFMAG0, ELFMAG1, ELFMAG2, ELFMAG3, ELFCLASS64,
					    ELFDATA2LSB, EV_CURRENT},
				.e_type = ET_DYN,
				.e_machine = EM_X86_64,
				.e_version = EV_CURRENT,
				.e_shoff = offsetof(struct frame_image, sections),
				.e_ehsize = sizeof(Elf64_Ehdr),
				.e_shentsize = sizeof(Elf64_Shdr),
				.e_shnum = 3,
				.e_shstrndx = 2,
			},
		.sections =
			{
				[1] = {.sh_name = 1,
				       .sh_type = SHT_PROGBITS,
				       .sh_flags = section->sh_flags & SHF_COMPRESSED,
				       .sh_offset = offsetof(struct frame_image, data),
				       .sh_size = section->sh_size,
				       .sh_addralign = 8},
				[2] = {.sh_name = 14,
				       .sh_type = SHT_STRTAB,
				       .sh_offset = offsetof(struct frame_image, names),
				       .sh_size = sizeof(names),
				       .sh_addralign = 1},
			},
	};
	memcpy(image->names, names, sizeof(names));
}

static bool unpacks_too_large(const struct stall_elf *elf, const Elf64_Shdr *section)
{
	Elf64_Chdr header;

	if (!(section->sh_flags & SHF_COMPRESSED))
		return false;
	if (section->sh_size < sizeof(header))
		return true;
	struct stall_error *err = stall_elf_read(elf, section->sh_offset, &header, sizeof(header));
	bool failed = err;
	stall_error_destroy(err);
	return failed || header.ch_size > MAX_FRAME_SECTION;
}

static void open_debug_frame(struct stall_cfi *cfi)
{
	const struct stall_elf *file = cfi->debug_frame_file;
	const Elf64_Shdr *section = stall_elf_section(file, ".debug_frame");

	if (section->sh_size > MAX_FRAME_SECTION || unpacks_too_large(file, section))
		return;
	size_t size = sizeof(struct frame_image) + section->sh_size;
	struct frame_image *image = malloc(size);
	if (!image)
		return;
	fill_frame_image(image, section);
	cfi->frame_image = (uint8_t *)image;
	struct stall_error *err =
		stall_elf_read(file, section->sh_offset, image->data, section->sh_size);
	if (err) {
		stall_error_destroy(err);
		return;
	}
	cfi->frame_elf = elf_memory((char *)image, size);
	cfi->dwarf = dwarf_begin_elf(cfi->frame_elf, DWARF_C_READ, NULL);
	if (cfi->dwarf)
		cfi->debug_frame = dwarf_getcfi(cfi->dwarf);
}

static Dwarf_Frame *find_frame(struct stall_cfi *cfi, uint64_t address)
{
	Dwarf_Frame *frame;

	if (cfi->eh_frame && dwarf_cfi_addrframe(cfi->eh_frame, address, &frame) == 0)
		return frame;
	if (!cfi->has_debug_frame)
		return NULL;
	if (!cfi->tried_debug_frame) {
		cfi->tried_debug_frame = true;
		open_debug_frame(cfi);
	}
	if (cfi->debug_frame && dwarf_cfi_addrframe(cfi->debug_frame, address, &frame) == 0)
		return frame;
	return NULL;
}

static const struct stall_expression *keep_expression(struct stall_cfi *cfi, const Dwarf_Op *ops,
						      size_t count)
{
	_cleanup_free_ struct stall_expression *expression = NULL;
	struct stall_error *err = stall_expression_create(ops, count, &expression);

	if (err) {
		stall_error_destroy(err);
		return NULL;
	}
	size_t size = sizeof(*expression) + expression->count * sizeof(expression->ops[0]);
	struct block *block = malloc(sizeof(*block) + size);
	if (!block)
		return NULL;
	memcpy(block->data, expression, size);
	block->next = cfi->blocks;
	cfi->blocks = block;
	return (const struct stall_expression *)block->data;
}

static bool decode_cfa(struct stall_cfi *cfi, Dwarf_Frame *frame, struct stall_row *row)
{
	Dwarf_Op *ops;
	size_t count;

	if (dwarf_frame_cfa(frame, &ops, &count) != 0 || count == 0)
		return false;
	if (count == 1 && ops->atom == DW_OP_bregx && ops->number < STALL_REGS) {
		row->cfa_reg = (uint8_t)ops->number;
		row->cfa_offset = (int64_t)ops->number2;
		return true;
	}
	if (count == 1 && ops->atom >= DW_OP_breg0 && ops->atom < DW_OP_breg0 + STALL_REGS) {
		row->cfa_reg = ops->atom - DW_OP_breg0;
		row->cfa_offset = (int64_t)ops->number;
		return true;
	}
	row->cfa_is_expression = true;
	row->cfa_expression = keep_expression(cfi, ops, count);
	return row->cfa_expression;
}

// libdw says "at CFA + N" and "is CFA + N" as expressions.
static bool decode_cfa_relative(const Dwarf_Op *ops, size_t count, struct stall_rule *rule)
{
	bool is_value = ops[count - 1].atom == DW_OP_stack_value;
	size_t n = count - is_value;

	if (ops[0].atom != DW_OP_call_frame_cfa || n > 2 ||
	    (n == 2 && ops[1].atom != DW_OP_plus_uconst))
		return false;
	rule->kind = is_value ? STALL_RULE_VAL_OFFSET : STALL_RULE_OFFSET;
	rule->offset = n == 2 ? (int64_t)ops[1].number : 0;
	return true;
}

// False where what the file says about the register cannot be understood.
static bool decode_rule(struct stall_cfi *cfi, Dwarf_Frame *frame, uint8_t reg,
			struct stall_rule *rule)
{
	Dwarf_Op memory[3], *ops;
	size_t count;

	*rule = (struct stall_rule){.reg = reg, .kind = STALL_RULE_UNDEFINED};
	if (dwarf_frame_register(frame, reg, memory, &ops, &count) != 0)
		return false;
	if (count == 0) {
		if (ops == NULL)
			rule->kind = STALL_RULE_SAME;
		return true;
	}
	if (decode_cfa_relative(ops, count, rule))
		return true;
	if (count == 1 && ops->atom == DW_OP_regx && ops->number < STALL_REGS) {
		rule->kind = STALL_RULE_REGISTER;
		rule->other = (uint8_t)ops->number;
		return true;
	}
	rule->kind = STALL_RULE_EXPRESSION;
	rule->expression = keep_expression(cfi, ops, count);
	return rule->expression;
}

// Callee-saved registers (System V ABI, AMD64 supplement, 3.2.1).
static bool survives_calls(uint8_t reg)
{
	return reg == STALL_REG_RBX || reg == STALL_REG_RBP || (reg >= 12 && reg <= 15);
}

// Where nothing is said about a register the ABI decides. libdw's table of it has rax for rbx
// (elfutils 0.188, backends/x86_64_cfi.c), which loses frames whose CFA stands on rbx.
static void apply_abi(struct stall_rule *rule)
{
	if (rule->kind == STALL_RULE_UNDEFINED && survives_calls(rule->reg))
		rule->kind = STALL_RULE_SAME;
	else if (rule->kind == STALL_RULE_SAME && !survives_calls(rule->reg))
		rule->kind = STALL_RULE_UNDEFINED;
}

static bool decode(struct stall_cfi *cfi, Dwarf_Frame *frame, struct stall_row *row,
		   struct stall_rule *rules)
{
	int ra = dwarf_frame_info(frame, NULL, NULL, &row->signal);

	if (ra < 0 || ra >= STALL_REGS || !decode_cfa(cfi, frame, row))
		return false;
	for (uint8_t reg = 0; reg < STALL_REG_PC; reg++) {
		struct stall_rule *rule = &rules[row->rule_count];

		// Without a rule the register is unknown in the caller.
		if (!decode_rule(cfi, frame, reg, rule))
			continue;
		apply_abi(rule);
		row->rule_count += rule->kind != STALL_RULE_UNDEFINED;
	}
	struct stall_rule *rule = &rules[row->rule_count++];
	if (!decode_rule(cfi, frame, (uint8_t)ra, rule))
		return false;
	// "The same" of the PC itself would not move.
	if (rule->kind == STALL_RULE_SAME && ra == STALL_REG_PC)
		return false;
	if (rule->kind == STALL_RULE_SAME)
		*rule = (struct stall_rule){.kind = STALL_RULE_REGISTER, .other = (uint8_t)ra};
	rule->reg = STALL_REG_PC;
	return true;
}

const struct stall_row *stall_cfi_row(struct stall_cfi *cfi, uint64_t address, bool *ret_bad)
{
	_cleanup_free_ Dwarf_Frame *frame = find_frame(cfi, address);
	struct stall_rule rules[STALL_REGS];
	struct stall_row row = {};

	*ret_bad = frame && !decode(cfi, frame, &row, rules);
	if (!frame || *ret_bad)
		return NULL;
	size_t size = sizeof(row) + row.rule_count * sizeof(rules[0]);
	struct block *block = malloc(sizeof(*block) + size);
	if (!block)
		return NULL;
	block->next = cfi->blocks;
	cfi->blocks = block;
	struct stall_row *kept = (struct stall_row *)block->data;
	*kept = row;
	memcpy(kept->rules, rules, row.rule_count * sizeof(rules[0]));
	return kept;
}
