// SPDX-License-Identifier: Apache-2.0
// The result of unwinding: frames, stacks, and facts about each module.
#ifndef STALL_UNWOUND_H
#define STALL_UNWOUND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define STALL_MAX_FRAMES 512  // a thread
#define STALL_MAX_SYMBOL 4096 // bytes of a demangled name

// The reason for the end of a stack. Anything but COMPLETE is shown with the stack.
enum stall_unwind_end {
	STALL_UNWIND_COMPLETE,	   // the outermost frame: undefined return address, or _start/clone
	STALL_UNWIND_NO_REGISTERS, // a register that the rule needs is not known
	STALL_UNWIND_NO_CFI,	   // no unwind information for this PC
	STALL_UNWIND_NO_MEMORY,	   // memory outside the copy that could not be read, or was 0
	STALL_UNWIND_BAD_CFI,	   // the rule is invalid (CFA does not grow, expression fails)
	STALL_UNWIND_LIMIT,	   // STALL_MAX_FRAMES, or the worker's deadline
	STALL_UNWIND_NOT_TRIED,	   // no registers at all, or the worker failed
};
const char *stall_unwind_end_name(enum stall_unwind_end end);

struct stall_frame {
	uint32_t process;
	uint32_t module;	// index into the process's modules, or STALL_NO_MODULE
	uint64_t pc;		// in the target; of callers: the return address
	uint64_t offset;	// pc as a virtual address of the ELF file (pc - load bias)
	const char *symbol;	// demangled; NULL: nothing covers it (within its st_size)
	const char *linkage;	// mangled, where it differs; else NULL
	uint64_t symbol_offset; // pc - start of the symbol
};

struct stall_stack {
	uint32_t *frames; // indexes into stall_unwound.frames, innermost first
	uint32_t count;
	enum stall_unwind_end end;
	uint32_t live_reads; // memory that was not in the copy and was read from the live process
};

// The worker's facts about a module.
struct stall_module_info {
	uint32_t process, module;
	char build_id[64 + 1]; // hex, "" where there is none
	uint64_t bias;
	const char *symbols; // static: ".symtab", ".dynsym", ".gnu_debugdata", "separate", "pack",
			     // "none"
	const char *cfi;     // static: ".eh_frame", ".debug_frame", "both", "none"
	const char *debug_file; // path of the separate debug file or the pack, or NULL
	const char *pack_error; // names its pack or debug file and why it is not used, or NULL
	const char *error;	// why it could not be read, or NULL
};

// The storage of the pointers above.
struct stall_unwound_storage {
	char *strings;
	size_t string_bytes;
	uint32_t *indexes;
	bool *modules; // of the worker's job: those that have an info
};

struct stall_unwound {
	struct stall_frame *frames; // distinct
	size_t frame_count;
	struct stall_stack *stacks; // one per thread of the snapshot, in its order
	size_t stack_count;
	struct stall_module_info *modules; // only those that were examined
	size_t module_count;
	bool partial; // the worker died or was late: some stacks are NOT_TRIED
	struct stall_unwound_storage *storage;
};
void stall_unwound_deinit(struct stall_unwound *unwound);

#endif
