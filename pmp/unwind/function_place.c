// SPDX-License-Identifier: Apache-2.0
#include "unwind/function_place.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "unwind/worker_job.h"
#include "unwind/worker_result.h"

void stall_function_places_deinit(struct stall_function_place *places, size_t count)
{
	for (size_t i = 0; i < count; i++)
		free(places[i].refused);
}

_Static_assert(STALL_FUNCTION_PLACES == STALL_PROTOCOL_PLACES,
	       "one for the callers, one for the protocol");

// NULL: out of memory.
static char *describe_refused(const struct stall_job_layout *layout, const char *strings,
			      size_t size, const struct stall_protocol_query *entry,
			      const struct stall_module *module)
{
	struct stall_protocol_module_info info;
	char *text;

	memcpy(&info, layout->region + layout->job.infos + (entry->found - 1) * sizeof(info),
	       sizeof(info));
	const char *symbol = stall_result_string(strings, size, entry->symbol);
	const char *from = stall_result_string(strings, size, info.debug_file);
	int length = asprintf(&text, "no function of %s starts at the symbol %s%s%s", module->path,
			      symbol ? symbol : "?", from ? " of " : "", from ? from : "");
	return length < 0 ? NULL : text;
}

// A place that the worker reports is only used if it is code of that very process.
static bool read_place(const struct stall_job_layout *layout, uint32_t process,
		       const struct stall_protocol_query *entry, struct stall_function_place *ret)
{
	uint32_t of_process, module;

	if (!entry->found || !stall_job_module(layout, entry->found - 1, &of_process, &module) ||
	    of_process != process)
		return false;
	*ret = (struct stall_function_place){.module = module};
	if (entry->address == UINT64_MAX)
		return true;
	if (!stall_maps_find_code(layout->snapshot->processes[process].maps, module,
				  entry->address))
		return false;
	ret->file_offset = entry->address;
	ret->skipped = entry->offset <= entry->address ? (uint8_t)entry->offset : 0;
	ret->stepped = entry->size & STALL_PROTOCOL_STEPPED;
	ret->clone = entry->size & STALL_PROTOCOL_CLONE;
	return true;
}

struct stall_error *stall_function_places_read(const struct stall_job_layout *layout,
					       struct stall_function_place *ret, size_t *ret_count)
{
	const struct stall_maps *maps = layout->snapshot->processes[layout->only].maps;
	_cleanup_free_ char *strings = NULL;
	size_t size;
	struct stall_error *err = stall_result_strings(layout, &strings, &size);

	for (size_t i = 0; !err && i < layout->job.query_count; i++) {
		struct stall_function_place *place = &ret[*ret_count];
		struct stall_protocol_query answer;

		memcpy(&answer, layout->region + layout->job.queries + i * sizeof(answer),
		       sizeof(answer));
		if (!read_place(layout, layout->only, &answer, place))
			continue;
		place->pattern = (uint32_t)(i / STALL_PROTOCOL_PLACES);
		++*ret_count;
		if (answer.address != UINT64_MAX)
			continue;
		place->refused = describe_refused(layout, strings, size, &answer,
						  &maps->modules[place->module]);
		if (!place->refused)
			err = &stall_enomem;
	}
	return err;
}
