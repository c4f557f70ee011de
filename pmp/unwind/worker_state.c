// SPDX-License-Identifier: Apache-2.0
#include "unwind/worker_state.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/array.h"
#include "base/child_process.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/lengths.h"

// More than any real program has; a core file is not opened here.
#define MAX_PROGRAM_HEADERS 4096
#define KEEP_FILES 256
#define KEEP_JOBS 16

bool stall_worker_late(const struct stall_worker_state *state)
{
	return stall_clock_ns(CLOCK_MONOTONIC) >= state->job->deadline_ns;
}

uint32_t stall_worker_string(struct stall_worker_state *state, const char *text)
{
	struct stall_protocol_job *job = state->job;
	size_t size = strlen(text) + 1;

	if (!stall_fits(job->string_bytes, size, job->string_capacity))
		return 0;
	memcpy(state->strings + job->string_bytes, text, size);
	uint32_t at = (uint32_t)job->string_bytes;
	job->string_bytes += size;
	return at + 1;
}

bool stall_worker_send(struct stall_worker_state *state,
		       const struct stall_protocol_message *message)
{
	struct iovec part = {(void *)message, sizeof(*message)};

	return stall_send_descriptor(state->socket, &part, 1, -1, 0) == (ssize_t)sizeof(*message);
}

bool stall_worker_receive(struct stall_worker_state *state, struct stall_protocol_message *message,
			  uint8_t *page, int *ret_fd)
{
	uint8_t unused[8];
	struct iovec parts[2] = {
		{message, sizeof(*message)},
		{page ? page : unused, page ? STALL_PROTOCOL_PAGE : sizeof(unused)},
	};

	return stall_receive_descriptor(state->socket, parts, 2, ret_fd) >=
	       (ssize_t)sizeof(*message);
}

bool stall_worker_ask(struct stall_worker_state *state,
		      const struct stall_protocol_message *question,
		      struct stall_protocol_message *ret, uint8_t *page, int *ret_fd)
{
	// Without an answer the probe has ended.
	if (!stall_worker_send(state, question) || !stall_worker_receive(state, ret, page, ret_fd))
		_exit(0);
	return ret->status == 0;
}

/* Files. */

static bool same_key(const struct stall_protocol_key *a, const struct stall_protocol_key *b)
{
	return a->dev == b->dev && a->ino == b->ino && a->size == b->size &&
	       a->mtime_ns == b->mtime_ns;
}

static struct stall_worker_file *find_file(struct stall_worker_state *state,
					   const struct stall_protocol_key *key)
{
	for (size_t i = 0; i < state->file_count; i++) {
		if (same_key(&state->files[i].key, key))
			return &state->files[i];
	}
	return NULL;
}

void stall_worker_trim_files(struct stall_worker_state *state)
{
	size_t kept = 0;

	if (state->file_count <= KEEP_FILES)
		return;
	for (size_t i = 0; i < state->file_count; i++) {
		if (state->files[i].job + KEEP_JOBS < state->jobs)
			stall_binary_destroy(state->files[i].binary);
		else
			state->files[kept++] = state->files[i];
	}
	state->file_count = kept;
}

static struct stall_error *ask_for_file(struct stall_worker_state *state, uint32_t module,
					int *ret_fd)
{
	struct stall_protocol_message question = {.type = STALL_PROTOCOL_FILE, .module = module},
				      answer;

	if (!stall_worker_ask(state, &question, &answer, NULL, ret_fd) || *ret_fd < 0)
		return stall_error_create(STALL_ERROR_OTHER, "the file did not arrive");
	return NULL;
}

static struct stall_error *open_binary(struct stall_worker_state *state, uint32_t module,
				       struct stall_binary **ret)
{
	const char *path = (char *)state->region + state->modules[module].path;
	struct stall_elf *elf = NULL;
	int fd = -1;
	struct stall_error *err = ask_for_file(state, module, &fd);

	if (!err)
		err = stall_elf_open(fd, &elf);
	if (err)
		return err;
	if (elf->segment_count > MAX_PROGRAM_HEADERS) {
		err = stall_error_create(STALL_ERROR_LIMIT, "%zu program headers",
					 elf->segment_count);
		stall_elf_destroy(elf);
		return err;
	}
	return stall_binary_create(elf, state->dirs, state->packs, path, ret);
}

static struct stall_error *get_binary(struct stall_worker_state *state, uint32_t module,
				      struct stall_binary **ret)
{
	const struct stall_protocol_module *entry = &state->modules[module];
	struct stall_worker_file *file = find_file(state, &entry->key);

	if (entry->bad)
		return stall_error_create(
			STALL_ERROR_FORMAT,
			"reading it crashed or held up the process that reads ELF files");
	if (!entry->has_fd)
		return stall_error_create(STALL_ERROR_OTHER, "the file could not be opened");
	if (!file) {
		struct stall_binary *binary;

		if (!stall_array_reserve(&state->files, state->file_count, 1,
					 &state->file_capacity))
			return &stall_enomem;
		struct stall_error *err = open_binary(state, module, &binary);
		if (err)
			return err;
		file = &state->files[state->file_count++];
		*file = (struct stall_worker_file){.key = entry->key, .binary = binary};
	}
	file->job = state->jobs;
	*ret = file->binary;
	return NULL;
}

static uint32_t symbols_code(const char *source)
{
	if (strcmp(source, ".symtab") == 0)
		return STALL_PROTOCOL_SYMTAB;
	if (strcmp(source, ".dynsym") == 0)
		return STALL_PROTOCOL_DYNSYM;
	if (strcmp(source, ".gnu_debugdata") == 0)
		return STALL_PROTOCOL_MINIDEBUG;
	if (strcmp(source, "pack") == 0)
		return STALL_PROTOCOL_PACK;
	return strcmp(source, "separate") == 0 ? STALL_PROTOCOL_SEPARATE
					       : STALL_PROTOCOL_SYMBOLS_NONE;
}

static uint32_t cfi_code(const char *source)
{
	if (strcmp(source, "both") == 0)
		return STALL_PROTOCOL_BOTH;
	if (strcmp(source, ".eh_frame") == 0)
		return STALL_PROTOCOL_EH;
	return strcmp(source, ".debug_frame") == 0 ? STALL_PROTOCOL_DEBUG : STALL_PROTOCOL_CFI_NONE;
}

static void describe(struct stall_worker_state *state, const struct stall_binary *binary,
		     struct stall_protocol_module_info *info)
{
	info->symbols = symbols_code(stall_symbols_source(binary->symbols));
	info->cfi = cfi_code(stall_cfi_source(binary->cfi));
	stall_elf_build_id_text(binary->elf, info->build_id);
	if (binary->debug_path)
		info->debug_file = stall_worker_string(state, binary->debug_path);
	if (binary->pack_error)
		info->pack_error = stall_worker_string(state, binary->pack_error);
}

struct stall_binary *stall_worker_binary(struct stall_worker_state *state, uint32_t module)
{
	struct stall_worker_module *known = &state->states[module];
	const struct stall_protocol_module *entry = &state->modules[module];
	struct stall_protocol_module_info *info = &state->infos[module];
	struct stall_binary *binary = NULL;

	if (known->tried)
		return known->binary;
	known->tried = true;
	state->job->current_module = module + 1;
	*info = (struct stall_protocol_module_info){.examined = 1};
	// Without headers, use the file offset as the address.
	known->bias = entry->start - entry->offset;
	_cleanup_error_ struct stall_error *err = get_binary(state, module, &binary);
	if (!err) {
		describe(state, binary, info);
		err = stall_elf_bias(binary->elf, entry->start, entry->offset, &known->bias);
	}
	info->bias = known->bias;
	if (err)
		info->error = stall_worker_string(state, err->message);
	else
		known->binary = binary;
	state->job->current_module = 0;
	return known->binary;
}
