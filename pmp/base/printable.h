// SPDX-License-Identifier: Apache-2.0
// Text of a target, which may have any bytes: it must not break a line or control a terminal.
#ifndef STALL_PRINTABLE_H
#define STALL_PRINTABLE_H

#include <stdbool.h>
#include <stddef.h>

// The length of the UTF-8 sequence at `bytes`, 0 where it is not a valid one. (Unicode 15, table
// 3-7: no overlong forms, no surrogates, nothing above U+10FFFF.)
size_t stall_utf8_length(const unsigned char *bytes, size_t size);
// Whether that sequence is a control character. Terminals take U+009B, a C1 one, for the beginning
// of an escape sequence.
bool stall_utf8_is_control(const unsigned char *bytes, size_t length);

// Puts '?' for control characters and for what is no UTF-8. Zeros stay.
void stall_make_printable(char *text, size_t size);

#endif
