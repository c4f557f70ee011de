// SPDX-License-Identifier: Apache-2.0
// Memory mappings of a process and the ELF modules in them.
#ifndef STALL_MAPS_H
#define STALL_MAPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"
#include "proc/module_file.h"
#include "proc/target.h"

#define STALL_NO_MODULE UINT32_MAX
#define STALL_MAX_MAPPINGS 1000000
#define STALL_MAX_MODULES 16384

struct stall_mapping {
	uint64_t start, end; // end is exclusive
	uint64_t offset;     // in the file
	bool executable, readable;
	uint32_t module; // index into stall_maps.modules, or STALL_NO_MODULE
};

struct stall_maps {
	struct stall_mapping *mappings; // sorted by start
	size_t mapping_count;
	struct stall_module *modules;
	size_t module_count;
	size_t modules_lost; // executable mappings beyond STALL_MAX_MODULES
	bool truncated;	     // of a text: it does not have all of them
};

struct stall_open_files;

// Reads /proc/PID/maps and opens each module: /proc/PID/map_files first (right for deleted and
// upgraded files and for other mount namespaces), then /proc/PID/root + path when its dev and ino
// match. The vdso is copied from memory into a memfd. With `previous` (may be NULL) the open files
// of modules that have not changed are taken over instead of being opened again; `previous` must
// still be destroyed by the caller. `files` (may be NULL) must not outlive the maps it has seen.
struct stall_error *stall_maps_create(const struct stall_target *target,
				      struct stall_maps *previous, struct stall_open_files *files,
				      struct stall_maps **ret);

// The same from the text of such a file, which the process itself has written, so that it is not
// trusted: invalid lines and mappings beyond STALL_MAX_TEXT_MAPPINGS are skipped. The vdso is left
// out.
#define STALL_MAX_TEXT_MAPPINGS 65536
struct stall_maps_text {
	const char *text;
	const struct stall_target *target; // NULL: it has ended
	int sysroot; // the folder that paths of an ended process are under, believed to hold its
		     // very files; -1: "/", and files are compared by dev and ino
};
struct stall_error *stall_maps_create_text(const struct stall_maps_text *text,
					   struct stall_maps *previous,
					   struct stall_open_files *files, struct stall_maps **ret);
void stall_maps_destroy(struct stall_maps *maps);

// The mapping with the address, or NULL.
const struct stall_mapping *stall_maps_find(const struct stall_maps *maps, uint64_t address);
// The executable mapping of a module with that offset of its file, or NULL.
const struct stall_mapping *stall_maps_find_code(const struct stall_maps *maps, uint32_t module,
						 uint64_t file_offset);

#endif
