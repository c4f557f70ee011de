// SPDX-License-Identifier: Apache-2.0
// Texts in the memory of a server, which are not trusted.
#ifndef STALL_SESSION_TEXT_H
#define STALL_SESSION_TEXT_H

#include <stdbool.h>
#include <stddef.h>

// Copies a name of `length` bytes, or up to a zero where that is SIZE_MAX. False: it has no end within
// `size` bytes, or characters that no name has.
bool stall_session_name(const char *bytes, size_t size, size_t length, char *ret, size_t ret_size);

// Whether these bytes can be the beginning of a statement that was left in memory: text, without
// characters that only binary data has.
bool stall_session_is_text(const char *bytes, size_t size);

#endif
