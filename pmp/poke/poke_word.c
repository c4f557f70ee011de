// SPDX-License-Identifier: Apache-2.0
#include "poke/poke_word.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>

struct stall_error *stall_poke_word_parse(const char *text, struct stall_poke_word *ret)
{
	struct stall_poke_word word = {};
	int end = 0;

	if (sscanf(text, "%" SCNx64 ":%u:%" SCNx64 ":%" SCNx64 "%n", &word.address, &word.size,
		   &word.old_value, &word.new_value, &end) != 4 ||
	    text[end])
		return stall_error_create(STALL_ERROR_USAGE,
					  "--word \"%.80s\": not ADDRESS:SIZE:OLD:NEW", text);
	if (word.size != 1 && word.size != 2 && word.size != 4 && word.size != 8)
		return stall_error_create(STALL_ERROR_USAGE,
					  "--word \"%.80s\": a word has 1, 2, 4 or 8 bytes", text);
	if (word.size < 8 && (word.old_value | word.new_value) >> 8 * word.size)
		return stall_error_create(STALL_ERROR_USAGE,
					  "--word \"%.80s\": a value has more than %u bytes", text,
					  word.size);
	if (word.old_value == word.new_value)
		return stall_error_create(STALL_ERROR_USAGE,
					  "--word \"%.80s\": both values are the same", text);
	*ret = word;
	return NULL;
}

struct stall_error *stall_poke_word_check(const struct stall_poke_process *process,
					  const struct stall_poke_word *word)
{
	struct stall_poke_mapping mapping;
	struct stall_error *err;

	if (word->address % word->size)
		return stall_error_create(STALL_ERROR_USAGE,
					  "0x%" PRIx64
					  " is not aligned to %u bytes: a reader could "
					  "see half of the write",
					  word->address, word->size);
	err = stall_poke_mapping_find(process, word->address, word->size, &mapping);
	if (err)
		return err;
	if (!mapping.writable)
		return stall_error_create(STALL_ERROR_PERMISSION,
					  "process %d may not write to its own memory at 0x%" PRIx64
					  ": it is not changed",
					  process->target.pid, word->address);
	if (mapping.shared)
		return stall_error_create(STALL_ERROR_PERMISSION,
					  "the memory of process %d at 0x%" PRIx64
					  " is shared with a file or other processes: it is not "
					  "changed",
					  process->target.pid, word->address);
	return NULL;
}

struct stall_error *stall_poke_word_read(const struct stall_poke_process *process,
					 const struct stall_poke_word *word, uint64_t *ret)
{
	uint64_t value = 0;
	struct stall_error *err =
		stall_poke_memory_read(process, word->address, &value, word->size);

	if (!err)
		*ret = value;
	return err;
}

struct stall_error *stall_poke_word_change(const struct stall_poke_process *process,
					   const struct stall_poke_word *word, uint64_t from,
					   uint64_t to)
{
	pid_t pid = process->target.pid;
	uint64_t value;
	struct stall_error *err = stall_poke_process_check(process);

	if (!err)
		err = stall_poke_word_check(process, word);
	// Last, so that the mapping was of this memory.
	if (!err)
		err = stall_poke_word_read(process, word, &value);
	if (err)
		return err;
	if (value != from)
		return stall_error_create(STALL_ERROR_AGAIN,
					  "process %d has %" PRIu64 " (0x%" PRIx64 ") at 0x%" PRIx64
					  ", not %" PRIu64 ": somebody else changed it, so it is "
					  "left as it is",
					  pid, value, value, word->address, from);
	value = to;
	err = stall_poke_memory_write(process, word->address, &value, word->size);
	if (!err)
		err = stall_poke_word_read(process, word, &value);
	if (err || value == to)
		return err;
	return stall_error_create(STALL_ERROR_AGAIN,
				  "process %d has %" PRIu64 " at 0x%" PRIx64 " right after %" PRIu64
				  " was written: somebody else writes to it",
				  pid, value, word->address, to);
}
