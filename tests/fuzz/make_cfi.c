// SPDX-License-Identifier: Apache-2.0
// make-cfi OWN PART LIBC: inputs of fuzz-cfi. OWN is the .eh_frame of this program, which uses every
// instruction and most operations; PART is the beginning of the C library's, LIBC all of it.
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "unwind/elf_file.h"

#define PART 6000
#define LIMIT (4U << 20)

__asm__(".text\n\t"
	".globl every_instruction\n\t"
	".type every_instruction, @function\n"
	"every_instruction:\n\t"
	".cfi_startproc\n\t"
	".cfi_personality 0x9b, pointer_to_nothing\n\t"
	".cfi_signal_frame\n\t"
	".cfi_remember_state\n\t"
	"pushq %rbp\n\t"
	".cfi_def_cfa_offset 16\n\t"
	".cfi_offset rbp, -16\n\t"
	"movq %rsp, %rbp\n\t"
	".cfi_def_cfa_register rbp\n\t"
	".cfi_undefined rbx\n\t"
	".cfi_same_value r12\n\t"
	".cfi_register r13, rax\n\t"
	".cfi_val_offset rsp, -8\n\t"
	"nop\n\t"
	".cfi_escape 0x05, 3, 2, 0x11, 3, 0x7e, 0x14, 3, 2, 0x15, 3, 0x7e, 0x2f, 3, 2\n\t"
	".cfi_escape 0x2e, 16, 0x12, 7, 0x7f, 0x13, 0x7e, 0x09, 3, 12, 0x06, 3\n\t"
	// DW_CFA_expression of r14: breg7 8, deref, lit1, bra 3, const1s -1, drop
	".cfi_escape 0x10, 14, 10, 0x77, 8, 0x06, 0x31, 0x28, 3, 0, 0x09, 0xff, 0x13\n\t"
	// DW_CFA_val_expression of r15: dup, over, rot, swap, pick 1, and, plus, plus_uconst 200
	".cfi_escape 0x16, 15, 11, 0x12, 0x14, 0x17, 0x16, 0x15, 1, 0x1a, 0x22, 0x23, 0xc8, 1\n\t"
	"nop\n\t"
	// DW_CFA_def_cfa_expression: bregx 7 8, const8u, deref_size 4, shl, minus
	".cfi_escape 0x0f, 16, 0x92, 7, 8, 0x0e, 1, 2, 3, 4, 5, 6, 7, 8, 0x94, 4, 0x24, 0x1c\n\t"
	".skip 300\n\t" // DW_CFA_advance_loc2
	".cfi_restore rbx\n\t"
	".cfi_restore_state\n\t"
	".skip 70000\n\t" // DW_CFA_advance_loc4
	".cfi_def_cfa rsp, 8\n\t"
	"ret\n\t"
	".cfi_endproc\n\t"
	".size every_instruction, . - every_instruction\n\t"
	".data\n"
	"pointer_to_nothing: .quad 0\n\t"
	".text\n");

// An input begins with 1 for .eh_frame, 0 for .debug_frame.
static void write_input(const char *from, const char *to, size_t limit)
{
	struct stall_elf *elf = NULL;
	uint8_t *data = NULL;
	struct stall_error *err = stall_elf_open(open(from, O_RDONLY | O_CLOEXEC), &elf);
	const Elf64_Shdr *section = err ? NULL : stall_elf_section(elf, ".eh_frame");

	if (section)
		err = stall_elf_load(elf, section->sh_offset, section->sh_size, LIMIT, &data);
	FILE *file = fopen(to, "we");
	if (err || !section || !file) {
		fprintf(stderr, "make-cfi: no .eh_frame of %s into %s\n", from, to);
		exit(1);
	}
	fputc(1, file);
	fwrite(data, 1, section->sh_size < limit ? section->sh_size : limit, file);
	fclose(file);
	free(data);
	stall_elf_destroy(elf);
}

int main(int argc, char **argv)
{
	Dl_info libc;

	if (argc != 4 || !dladdr((void *)(uintptr_t)qsort, &libc))
		return 2;
	write_input("/proc/self/exe", argv[1], LIMIT);
	write_input(libc.dli_fname, argv[2], PART);
	write_input(libc.dli_fname, argv[3], LIMIT);
	return 0;
}
