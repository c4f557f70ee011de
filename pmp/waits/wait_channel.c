// SPDX-License-Identifier: Apache-2.0
#include "waits/wait_channel.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "capture/kernel_symbols.h"
#include "waits/wait_source.h"

#define ADDRESSES 4096 // a power of two; a server that stalls has a hundred

// What is known of an address.
struct address {
	uint64_t address; // 0: free
	char name[STALL_CHANNEL];
	bool passed; // not a channel
};

struct stall_wait_channels {
	struct stall_kernel_symbols *symbols;
	struct address addresses[ADDRESSES];
	size_t count;
	bool hidden; // names are, from this user
};

bool stall_wait_channel_is_scheduler(const char *function)
{
	static const char *const begins[] = {
		"__bit_wait",
		"__down",
		"__mutex_",
		"__rt_mutex_",
		"__schedule",
		"__switch_",
		"__wait_for_",
		"__wait_on_bit",
		"bit_wait",
		"context_",
		"do_nanosleep",
		"do_wait_for_",
		"down_read",
		"down_write",
		"io_schedule",
		"mutex_lock",
		"out_of_line_wait_",
		"preempt_",
		"rt_mutex_",
		"rwsem_down_",
		"schedule",
		"wait_for_common",
		"wait_for_completion",
	};

	for (size_t i = 0; i < sizeof(begins) / sizeof(begins[0]); i++)
		if (!strncmp(function, begins[i], strlen(begins[i])))
			return true;
	return false;
}

size_t stall_wait_channel_length(const char *function)
{
	return strcspn(function, ".");
}

struct stall_wait_channels *stall_wait_channels_create(void)
{
	struct stall_wait_channels *channels = calloc(1, sizeof(*channels));

	if (!channels)
		return NULL;
	_cleanup_error_ struct stall_error *err = stall_kernel_symbols_create(&channels->symbols);
	if (err) {
		free(channels);
		return NULL;
	}
	return channels;
}

void stall_wait_channels_destroy(struct stall_wait_channels *channels)
{
	if (!channels)
		return;
	stall_kernel_symbols_destroy(channels->symbols);
	free(channels);
}

static struct address *find_address(struct stall_wait_channels *channels, uint64_t address)
{
	size_t at = (address * UINT64_C(0x9e3779b97f4a7c15) >> 40) % ADDRESSES;

	while (channels->addresses[at].address && channels->addresses[at].address != address)
		at = (at + 1) % ADDRESSES;
	return &channels->addresses[at];
}

static void set_address(struct address *known, uint64_t address, const char *name)
{
	*known = (struct address){.address = address, .passed = true};
	if (!name)
		return;
	size_t length = stall_wait_channel_length(name);
	if (length >= sizeof(known->name))
		length = sizeof(known->name) - 1;
	memcpy(known->name, name, length);
	known->passed = !length || stall_wait_channel_is_scheduler(name);
}

// All new ones of a thread together: without BPF each query reads the kernel's whole list.
static void name_new(struct stall_wait_channels *channels, const uint64_t *frames, size_t count)
{
	struct stall_kernel_symbol queries[STALL_SAMPLE_FRAMES];
	size_t found = 0;

	for (size_t i = 0; i < count; i++)
		if (frames[i] && !find_address(channels, frames[i])->address)
			queries[found++] = (struct stall_kernel_symbol){.address = frames[i]};
	if (!found)
		return;
	_cleanup_error_ struct stall_error *err =
		stall_kernel_symbols_find(channels->symbols, queries, found);
	channels->hidden = err && err->code != STALL_ERROR_NO_MEMORY;
	for (size_t i = 0; !err && i < found; i++) {
		struct address *known = find_address(channels, queries[i].address);
		channels->count += !known->address;
		set_address(known, queries[i].address, queries[i].name);
	}
}

const char *stall_wait_channel_find(struct stall_wait_channels *channels, const uint64_t *frames,
				    size_t count)
{
	if (channels->hidden)
		return NULL;
	if (count > STALL_SAMPLE_FRAMES)
		count = STALL_SAMPLE_FRAMES;
	// Modules come and go.
	if (channels->count > ADDRESSES / 2) {
		memset(channels->addresses, 0, sizeof(channels->addresses));
		channels->count = 0;
	}
	name_new(channels, frames, count);
	for (size_t i = 0; i < count; i++) {
		const struct address *known = find_address(channels, frames[i]);
		if (known->address && !known->passed)
			return known->name;
	}
	return NULL;
}
