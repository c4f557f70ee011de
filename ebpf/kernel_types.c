// SPDX-License-Identifier: Apache-2.0
#include "ebpf/kernel_types.h"

#include <bpf/btf.h>
#include <string.h>

const struct btf_member *stall_kernel_member(const struct btf *btf, const char *name,
					     const char *member)
{
	int id = btf__find_by_name_kind(btf, name, BTF_KIND_STRUCT);
	const struct btf_type *type = id > 0 ? btf__type_by_id(btf, id) : NULL;

	for (int i = 0; type && i < btf_vlen(type); i++) {
		const struct btf_member *found = &btf_members(type)[i];

		if (strcmp(btf__name_by_offset(btf, found->name_off), member) == 0)
			return found;
	}
	return NULL;
}
