// SPDX-License-Identifier: Apache-2.0
// The protocol between the probe and its worker. Jobs and results lie in a shared region. Short
// messages over a SOCK_SEQPACKET socket announce them, request files (the answer has a descriptor)
// and memory. The worker trusts the probe. The probe trusts nothing: it copies results and checks
// each number in its copy.
#ifndef STALL_WORKER_PROTOCOL_H
#define STALL_WORKER_PROTOCOL_H

#include <stddef.h>
#include <stdint.h>

#include "snapshot/snapshot.h"
#include "unwind/elf_file.h"

#define STALL_PROTOCOL_PAGE 4096

enum stall_protocol_type {
	// worker: the sandbox is up; `status` 0 or an errno, `module` the layers that it lacks
	STALL_PROTOCOL_READY = 1,
	STALL_PROTOCOL_JOB,  // probe: do the job in the region
	STALL_PROTOCOL_DONE, // worker: the result is in the region
	STALL_PROTOCOL_FILE, // worker: requests the file of job module `module`
	STALL_PROTOCOL_READ, // worker: requests the page at `address`; the answer holds `size` bytes
};

struct stall_protocol_message {
	uint32_t type;
	uint32_t module;
	uint32_t process;
	int32_t status;
	uint64_t address;
	uint64_t size;
};
_Static_assert(sizeof(struct stall_protocol_message) == 32, "no holes");

enum stall_protocol_kind {
	STALL_PROTOCOL_UNWIND,
	STALL_PROTOCOL_NAME_DATA,
	STALL_PROTOCOL_FIND_DATA,
	STALL_PROTOCOL_FIND_FUNCTIONS,
};

struct stall_protocol_process {
	uint32_t first_mapping, mapping_count; // executable ones, sorted by start
	uint32_t first_module, module_count;
	uint32_t main_module; // of the job; UINT32_MAX unknown
};
_Static_assert(sizeof(struct stall_protocol_process) == 20, "no holes");

struct stall_protocol_mapping {
	uint64_t start, end, offset;
	uint32_t module; // of the job
};
_Static_assert(sizeof(struct stall_protocol_mapping) == 32, "whole words");

// Identifies a file that may be in the cache.
struct stall_protocol_key {
	uint64_t dev, ino, size, mtime_ns;
};
_Static_assert(sizeof(struct stall_protocol_key) == 32, "no holes");

struct stall_protocol_module {
	uint32_t process, module; // of the snapshot
	uint64_t start, end, offset;
	uint64_t path;	// offset of a string in the region
	uint8_t has_fd; // else there is no file to request
	uint8_t bad;	// a worker died of it
	struct stall_protocol_key key;
};
_Static_assert(sizeof(struct stall_protocol_module) == 80, "whole words");

struct stall_protocol_thread {
	uint32_t process;
	struct stall_regs regs;
	uint64_t stack_address, stack_size;
	uint64_t stack; // offset in the arena
};
_Static_assert(sizeof(struct stall_protocol_thread) == 32 + sizeof(struct stall_regs),
	       "whole words");

struct stall_protocol_query {
	uint32_t process;
	uint64_t address; // NAME_DATA: in. FIND_DATA: out. FIND_FUNCTIONS: out, in the file
	uint64_t name;	  // FIND_DATA: offset of a string in the region. FIND_FUNCTIONS: a pattern
	// Out:
	uint32_t found;	 // NAME_DATA: a string of the result + 1; FIND_DATA: 1; 0: none
			 // FIND_FUNCTIONS: job module + 1
	uint32_t symbol; // FIND_FUNCTIONS, `address` is UINT64_MAX: a string of the result + 1: a
			 // symbol at whose address no function of the file starts
	uint64_t offset, size; // FIND_FUNCTIONS: bytes skipped; flags
			       // FIND_DATA: `offset` is in: 0 or STALL_PROTOCOL_MAIN_ONLY
};
_Static_assert(sizeof(struct stall_protocol_query) == 48, "whole words");

#define STALL_PROTOCOL_MAIN_ONLY 1 // not in other modules than the main program

// A pattern of FIND_FUNCTIONS has so many queries in a row, for the places where it is found.
#define STALL_PROTOCOL_PLACES 16
enum stall_protocol_place { STALL_PROTOCOL_CLONE = 1, STALL_PROTOCOL_STEPPED = 2 };

struct stall_protocol_frame {
	uint64_t pc, offset, symbol_offset;
	uint32_t process, module; // module of the snapshot, or STALL_NO_MODULE
	uint32_t symbol, linkage; // strings of the result + 1; 0: none
};
_Static_assert(sizeof(struct stall_protocol_frame) == 40, "no holes");

struct stall_protocol_stack {
	uint64_t first; // index into the result's indexes
	uint32_t count;
	uint32_t end; // enum stall_unwind_end
	uint32_t live_reads;
	uint32_t done;
};
_Static_assert(sizeof(struct stall_protocol_stack) == 24, "no holes");

enum stall_protocol_symbols {
	STALL_PROTOCOL_SYMBOLS_NONE,
	STALL_PROTOCOL_SYMTAB,
	STALL_PROTOCOL_DYNSYM,
	STALL_PROTOCOL_MINIDEBUG,
	STALL_PROTOCOL_SEPARATE,
	STALL_PROTOCOL_PACK,
};

enum stall_protocol_cfi {
	STALL_PROTOCOL_CFI_NONE,
	STALL_PROTOCOL_EH,
	STALL_PROTOCOL_DEBUG,
	STALL_PROTOCOL_BOTH
};

struct stall_protocol_module_info {
	uint32_t examined;
	uint32_t symbols, cfi;
	uint64_t bias;
	char build_id[2 * STALL_BUILD_ID_MAX + 1];
	uint32_t debug_file, pack_error, error; // strings of the result + 1; 0: none
};
_Static_assert(sizeof(struct stall_protocol_module_info) == 104, "whole words");

// At the start of the region. Arrays are offsets in the region; the worker fills the last five.
struct stall_protocol_job {
	uint32_t kind;
	uint32_t process_count, mapping_count, module_count, thread_count, query_count;
	uint64_t deadline_ns; // CLOCK_MONOTONIC: give up what is left by then
	uint64_t processes, mappings, modules, threads, queries;
	uint64_t frames, stacks, indexes, infos, strings;
	uint64_t frame_capacity, index_capacity, string_capacity;
	// Written by the worker as it goes, so that what it finished outlives it:
	uint64_t frame_count, index_count, string_bytes;
	uint32_t current_module; // job module + 1; 0: none
};
// The probe reads these three while a worker may write them.
_Static_assert(offsetof(struct stall_protocol_job, frame_count) == 136, "one load each");
_Static_assert(sizeof(struct stall_protocol_job) == 168, "whole words");

#endif
