// SPDX-License-Identifier: Apache-2.0
// The unprivileged child that parses the target's ELF files, unwinds and names.
// It is kept between captures with its caches (one symbol table and one set of unwind rows per
// file), replaced when it dies, and nothing that it says is believed without a check.
#ifndef STALL_WORKER_H
#define STALL_WORKER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "snapshot/snapshot.h"

#define STALL_MAX_FRAMES 512  // a thread
#define STALL_MAX_SYMBOL 4096 // bytes of a demangled name

// Why a stack ends where it ends. Anything but COMPLETE is shown with the stack.
enum stall_unwind_end {
	STALL_UNWIND_COMPLETE,	   // the outermost frame: undefined return address, or _start/clone
	STALL_UNWIND_NO_REGISTERS, // a register that the rule needs is not known
	STALL_UNWIND_NO_CFI,	   // no unwind information for this PC
	STALL_UNWIND_NO_MEMORY,	   // memory outside the copy that could not be read, or was 0
	STALL_UNWIND_BAD_CFI,	   // the rule makes no sense (CFA does not grow, expression fails)
	STALL_UNWIND_LIMIT,	   // STALL_MAX_FRAMES, or the worker's deadline
	STALL_UNWIND_NOT_TRIED,	   // no registers at all, or the worker failed
};
const char *stall_unwind_end_name(enum stall_unwind_end end);

struct stall_frame {
	uint32_t process;
	uint32_t module;	// index into the process's modules, or STALL_NO_MODULE
	uint64_t pc;		// in the target; of callers: the return address
	uint64_t offset;	// pc as a virtual address of the ELF file (pc - load bias)
	const char *symbol;	// demangled; NULL: nothing covers it (st_size is believed)
	const char *linkage;	// mangled, where it differs; else NULL
	uint64_t symbol_offset; // pc - start of the symbol
};

struct stall_stack {
	uint32_t *frames; // indexes into stall_unwound.frames, innermost first
	uint32_t count;
	enum stall_unwind_end end;
	uint32_t live_reads; // memory that was not in the copy and was read from the live process
};

// What the worker knows of a module.
struct stall_module_info {
	uint32_t process, module;
	char build_id[64 + 1]; // hex, "" where there is none
	uint64_t bias;
	const char *symbols; // static: ".symtab", ".dynsym", ".gnu_debugdata", "separate", "none"
	const char *cfi;     // static: ".eh_frame", ".debug_frame", "both", "none"
	const char *debug_file; // path of the separate debug file, or NULL
	const char *error;	// why it could not be read, or NULL
};

struct stall_unwound {
	struct stall_frame *frames; // distinct
	size_t frame_count;
	struct stall_stack *stacks; // one per thread of the snapshot, in its order
	size_t stack_count;
	struct stall_module_info *modules; // only those that were looked at
	size_t module_count;
	bool partial; // the worker died or was late: some stacks are NOT_TRIED
	void *storage;
};
void stall_unwound_deinit(struct stall_unwound *unwound);

struct stall_worker_options {
	const char *debug_dir; // searched beside /usr/lib/debug; may be NULL
	unsigned int deadline_ms;
};

struct stall_worker;

// Forks the child: nobody's uid, no capabilities, no_new_privs, not dumpable, memory and CPU
// limits. The arena must be initialised before, so that the child has it too.
struct stall_error *stall_worker_create(struct stall_arena *arena,
					const struct stall_worker_options *options,
					struct stall_worker **ret);
void stall_worker_destroy(struct stall_worker *worker);

// Never fails because of what the target's files hold: that gives partial results.
struct stall_error *stall_worker_unwind(struct stall_worker *worker,
					const struct stall_snapshot *snapshot,
					struct stall_unwound *ret);

// A data symbol (STT_OBJECT, STT_TLS excluded) that covers the address. names[i] is NULL where
// there is none; free with stall_names_destroy.
struct stall_data_query {
	uint32_t process;
	uint64_t address;
	char *name;	 // out, demangled, owned by the caller
	uint64_t offset; // out, into the object
};
struct stall_error *stall_worker_name_data(struct stall_worker *worker,
					   const struct stall_snapshot *snapshot,
					   struct stall_data_query *queries, size_t count);

// The address and size of a data symbol by name, in the process's main program first. *ret_address
// is 0 where there is none.
struct stall_error *stall_worker_find_data(struct stall_worker *worker,
					   const struct stall_snapshot *snapshot, uint32_t process,
					   const char *name, uint64_t *ret_address,
					   uint64_t *ret_size);

// Where functions can be probed, in the files of the process's modules: at their first instruction,
// or at the one after an ENDBR64, which can be emulated more often. A pattern is that of fnmatch(3),
// for the linkage name without what a compiler appends to the name of a clone. Cold parts of
// functions are not found. At most STALL_FUNCTION_PLACES a pattern.
#define STALL_FUNCTION_PLACES 16
struct stall_function_place {
	uint32_t pattern; // index
	uint32_t module;  // of the process
	uint64_t file_offset;
	uint8_t skipped; // bytes of the function before that: those of the ENDBR64
	bool clone;	 // ".part.0", ".constprop.1", ...: its arguments may be others
	bool stepped;	 // the kernel cannot emulate what stands there: a hit costs many times more
};
// *ret has room for pattern_count * STALL_FUNCTION_PLACES of them.
struct stall_error *stall_worker_find_functions(struct stall_worker *worker,
						const struct stall_snapshot *snapshot,
						uint32_t process, const char *const *patterns,
						size_t pattern_count,
						struct stall_function_place *ret,
						size_t *ret_count);

#endif
