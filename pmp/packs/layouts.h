// SPDX-License-Identifier: Apache-2.0
// The layouts of structures, from debugging information: lines "STRUCT.member[.member...]=OFFSET"
// and "STRUCT#size=BYTES". Members of classes and unions are followed, pointers and arrays are not;
// members of base classes and of unnamed structures appear like those of the structure itself.
#ifndef STALL_LAYOUTS_H
#define STALL_LAYOUTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "packs/dwarf_sections.h"

struct stall_layouts {
	char *text;
	size_t size;
	uint32_t lines, structures;
	uint32_t ambiguous; // structures that are left out: the file has several of that name
	bool is_split;	    // parts are in other files (.dwo), which are not read
	bool is_incomplete; // a part was damaged, or beyond a limit
};

// Reads those of `dwarf` and of what dwz(1) moved out of it.
struct stall_error *stall_layouts_read(struct stall_dwarf *dwarf, struct stall_layouts *ret);
void stall_layouts_deinit(struct stall_layouts *layouts);

#endif
