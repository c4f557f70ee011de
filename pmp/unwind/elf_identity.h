// SPDX-License-Identifier: Apache-2.0
// What a pack is found by: the same for a program, its stripped copy and, with a build-id, its
// separate debug file.
#ifndef STALL_ELF_IDENTITY_H
#define STALL_ELF_IDENTITY_H

#include <stdbool.h>

#include "unwind/elf_file.h"

#define STALL_IDENTITY_MAX 96 // with its NUL

// The build-id in hex digits. Of a file without one "crc32-SUM-SIZE": CRC-32 and size in bytes (both
// in hex digits) of its first executable segment without what an ELF header would take, since
// strip(1) changes the header and nothing else there. False: the file has neither, as a separate
// debug file without a build-id.
bool stall_elf_identity(const struct stall_elf *elf, char ret[STALL_IDENTITY_MAX]);
// Whether the text can be one, and so can be part of the name of a file.
bool stall_identity_is_valid(const char *text);
// Where that segment is loaded: it differs between a debug file and its program if prelink(8) moved
// the program. 0 where there is none.
uint64_t stall_elf_text_address(const struct stall_elf *elf);

#endif
