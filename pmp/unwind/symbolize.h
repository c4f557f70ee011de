// SPDX-License-Identifier: Apache-2.0
// Names addresses of ELF files that it finds by build-id: completes a capture of another machine.
#ifndef STALL_SYMBOLIZE_H
#define STALL_SYMBOLIZE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

struct stall_symbolizer;

struct stall_symbolized {
	const char *symbol;  // demangled; NULL: nothing covers the address
	const char *linkage; // mangled, where it differs; else NULL
	uint64_t offset;     // into the symbol
};

// `dirs` are searched for .build-id/xx/yyy.debug first, then, once, scanned for ELF files (bounded
// in depth and number); /usr/lib/debug is always searched. A directory that cannot be opened, or that
// others can change (trust.h), is an error. Where no file has static functions, a pack is searched for; of `pack_dirs`, a missing one
// is skipped. The files in them are opened later: their owners are compared with this process's user of
// now.
struct stall_symbolizer_options {
	const char *const *dirs;
	size_t dir_count;
	const char *const *pack_dirs;
	size_t pack_dir_count;
};
struct stall_error *stall_symbolizer_create(const struct stall_symbolizer_options *options,
					    struct stall_symbolizer **ret);
void stall_symbolizer_destroy(struct stall_symbolizer *symbolizer);

// Names `count` virtual addresses (pc - load bias) of the file with that build-id (hex; NULL:
// unknown, then the file at `path` is used; `path` may be NULL too). callers[i] (may be NULL) says
// that the address is a return address, looked up one byte before. ret[i] is filled for each; its
// strings and *ret_file (the file that was used; *ret_is_pack: it is a pack) live as long as the
// symbolizer.
struct stall_error *stall_symbolizer_lookup(struct stall_symbolizer *symbolizer,
					    const char *build_id, const char *path,
					    const uint64_t *addresses, const bool *callers,
					    size_t count, struct stall_symbolized *ret,
					    const char **ret_file, bool *ret_is_pack);

#endif
