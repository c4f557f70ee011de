// SPDX-License-Identifier: Apache-2.0
#include "lock/server_memory.h"

#include <stdio.h>

#include "base/clock.h"
#include "lock/thread_numbers.h"

// struct pthread of glibc 2.11 and later on x86-64: its own address and the thread's id.
#define PTHREAD_SELF 16
#define PTHREAD_TID 720

const uint8_t stall_cond_starts[STALL_COND_STARTS] = {0, 32, 40};

// The key with another name of its structure.
static bool get_renamed(const struct stall_layout *layout, const struct stall_layout_field *field,
			int64_t *ret)
{
	const char *member = strchr(field->key, '.'), *name = field->other;
	char key[128];

	while (name && member) {
		size_t length = strcspn(name, " ");

		if (snprintf(key, sizeof(key), "%.*s%s", (int)length, name, member) <
			    (int)sizeof(key) &&
		    stall_layout_get(layout, key, ret))
			return true;
		name = name[length] ? name + length + 1 : NULL;
	}
	return false;
}

bool stall_layout_fields(const struct stall_layout *layout, const struct stall_layout_field *fields,
			 size_t count, void *ret)
{
	for (size_t i = 0; i < count; i++) {
		const struct stall_layout_field *field = &fields[i];
		int64_t value;

		if (!stall_layout_get(layout, field->key, &value) &&
		    !get_renamed(layout, field, &value))
			return false;
		if (value < 0 || value >= STALL_FIELD_MAX)
			return false;
		*(int32_t *)((char *)ret + field->at) = (int32_t)value;
	}
	return true;
}

int64_t stall_layout_value(const struct stall_layout *layout, const char *key, int64_t otherwise)
{
	int64_t value;

	return stall_layout_get(layout, key, &value) ? value : otherwise;
}

bool stall_server_late(const struct stall_server_memory *memory)
{
	return memory->until_ns && stall_clock_ns(CLOCK_MONOTONIC) > memory->until_ns;
}

void stall_server_read_all(const struct stall_server_memory *memory, struct stall_read *reads,
			   size_t count)
{
	const struct stall_memory *source = &memory->snapshot->memory;

	for (size_t i = 0; i < count; i++)
		reads[i].done = 0;
	if (!count || stall_server_late(memory))
		return;
	if (source->read) {
		for (size_t i = 0; i < count; i++)
			reads[i].done = source->read(source->arg, memory->process, reads[i].address,
						     reads[i].buf, reads[i].size);
		return;
	}
	// What could not be read has no `done`.
	stall_error_destroy(
		stall_read_child_memory(&memory->snapshot->processes[memory->process].target, reads,
					count));
}

bool stall_server_read(const struct stall_server_memory *memory, uint64_t address, void *buf,
		       size_t size)
{
	struct stall_read read = {.address = address, .buf = buf, .size = size};

	if (!address)
		return false;
	stall_server_read_all(memory, &read, 1);
	return read.done == size;
}

uint64_t stall_server_pointer(const struct stall_server_memory *memory,
			      enum stall_server_global_name name)
{
	const struct stall_server_global *global = &memory->globals[name];
	uint64_t pointer;

	if (global->size != sizeof(pointer) ||
	    !stall_server_read(memory, global->address, &pointer, sizeof(pointer)))
		return 0;
	return pointer;
}

uint32_t stall_server_thread_of_tid(const struct stall_server_memory *memory, uint32_t ns_tid)
{
	return ns_tid ? stall_thread_of_tid(memory->numbers, ns_tid) : STALL_NO_THREAD;
}

uint32_t stall_server_thread_of(const struct stall_server_memory *memory, uint64_t pthread)
{
	uint64_t self;
	uint32_t tid;

	if (!pthread || pthread == UINT64_MAX)
		return STALL_NO_THREAD;
	uint32_t thread = stall_thread_of_pthread(memory->numbers, pthread);
	if (thread != STALL_NO_THREAD || !memory->numbers->lacks_pthreads)
		return thread;
	if (!stall_server_read(memory, pthread + PTHREAD_SELF, &self, sizeof(self)) ||
	    self != pthread || !stall_server_read(memory, pthread + PTHREAD_TID, &tid, sizeof(tid)))
		return STALL_NO_THREAD;
	return stall_server_thread_of_tid(memory, tid);
}

bool stall_is_text(const char *text, size_t size)
{
	size_t length = strnlen(text, size);

	for (size_t i = 0; i < length; i++)
		if ((unsigned char)text[i] < ' ' || text[i] == 0x7f)
			return false;
	return length > 0 && length < size;
}

void stall_server_text(const struct stall_server_memory *memory, uint64_t address, char *ret,
		       size_t size)
{
	struct stall_read read = {.address = address, .buf = ret, .size = size};

	if (address)
		stall_server_read_all(memory, &read, 1);
	if (!stall_is_text(ret, read.done))
		*ret = '\0';
}
