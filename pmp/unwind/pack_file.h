// SPDX-License-Identifier: Apache-2.0
// Reads a pack: the names of the functions and objects of one build of a program. A pack is as
// hostile as any other file.
#ifndef STALL_PACK_FILE_H
#define STALL_PACK_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "unwind/pack_format.h"

struct stall_pack;

// Takes the descriptor over, on failure too. An error if the file is not a sound pack of that
// identity.
struct stall_error *stall_pack_open(int fd, const char *identity, struct stall_pack **ret);
void stall_pack_destroy(struct stall_pack *pack);
static inline void stall_pack_destroyp(struct stall_pack **pack)
{
	stall_pack_destroy(*pack);
}

const struct stall_pack_header *stall_pack_header(const struct stall_pack *pack);

struct stall_pack_symbol {
	uint64_t address, size;
	uint32_t name; // for stall_pack_name()
	uint8_t info;  // st_info
	bool is_object;
};
// Calls `visit` for the functions, then for the objects, each by ascending address, until it
// returns false. An error: the table is damaged; what came before it has been visited.
typedef bool stall_pack_visit(void *arg, const struct stall_pack_symbol *symbol);
struct stall_error *stall_pack_each(const struct stall_pack *pack, stall_pack_visit *visit,
				    void *arg);

// The name, valid until some other names have been read. NULL: it is damaged.
const char *stall_pack_name(struct stall_pack *pack, uint32_t name);

#endif
