// SPDX-License-Identifier: Apache-2.0
// The part of the loader that counts what is written to files, instead of waits: options.storage.
#ifndef STALL_STORAGE_LOADER_H
#define STALL_STORAGE_LOADER_H

#include <stddef.h>

#include "base/error.h"
#include "ebpf/waits.h"

struct stall_bpf_waits;

// What was counted beside stats[index]. Programs add to it at any time.
void stall_bpf_waits_storage(const struct stall_bpf_waits *waits, size_t index,
			     struct stall_storage_stat *ret);
// Why it is not known which pages became dirty; NULL: it is known.
const char *stall_bpf_waits_dirty_why_not(const struct stall_bpf_waits *waits);

struct btf;

// Used by waits_attach.c and waits_loader.c alone. Before the skeleton is loaded.
void stall_storage_prepare(struct stall_bpf_waits *waits, const struct btf *btf);
struct stall_error *stall_storage_map(struct stall_bpf_waits *waits);
void stall_storage_unmap(struct stall_bpf_waits *waits);
// A kernel that refuses only makes dirty pages unknown.
void stall_storage_attach(struct stall_bpf_waits *waits);
void stall_storage_detach(struct stall_bpf_waits *waits);

#endif
