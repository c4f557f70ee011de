// SPDX-License-Identifier: Apache-2.0
#include "poke/poke.h"

#include "poke/poke_files.h"
#include "poke/poke_word.h"

struct stall_error *stall_poke_check(const struct stall_poke *poke)
{
	return poke->word.size ? stall_poke_word_check(&poke->process, &poke->word)
			       : stall_poke_files_check(poke);
}

struct stall_error *stall_poke_state(const struct stall_poke *poke, enum stall_poke_state *ret)
{
	struct stall_error *err;

	if (poke->word.size) {
		uint64_t value;

		err = stall_poke_word_read(&poke->process, &poke->word, &value);
		if (!err)
			*ret = value == poke->word.old_value   ? STALL_POKE_OLD
			       : value == poke->word.new_value ? STALL_POKE_NEW
							       : STALL_POKE_OTHER;
		return err;
	}
	size_t direct, open;
	err = stall_poke_files_count(poke, &direct, &open);
	if (!err)
		*ret = !direct		? STALL_POKE_OLD
		       : direct == open ? STALL_POKE_NEW
					: STALL_POKE_OTHER;
	return err;
}

struct stall_error *stall_poke_set(const struct stall_poke *poke)
{
	return poke->word.size ? stall_poke_word_change(&poke->process, &poke->word,
							poke->word.old_value, poke->word.new_value)
			       : stall_poke_files_set(poke);
}

struct stall_error *stall_poke_undo(const struct stall_poke *poke, enum stall_poke_state *ret_found)
{
	enum stall_poke_state found;
	struct stall_error *err = stall_poke_state(poke, &found);

	if (err)
		return err;
	if (found != STALL_POKE_OLD)
		err = poke->word.size
			      ? stall_poke_word_change(&poke->process, &poke->word,
						       poke->word.new_value, poke->word.old_value)
			      : stall_poke_files_undo(poke);
	if (!err)
		*ret_found = found;
	return err;
}
