// SPDX-License-Identifier: Apache-2.0
// The input is a layout and memory of a server (sessions_image.h). This process has that memory, and
// reads it as it does another's.
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fuzz.h"
#include "introspect/sessions.h"
#include "sessions_image.h"

static struct stall_arena arena;
static struct stall_process process;
static uint8_t *memory;

static void prepare(void)
{
	memory = mmap((void *)IMAGE_BASE, IMAGE_MEMORY, PROT_READ | PROT_WRITE,
		      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	must(memory == (uint8_t *)IMAGE_BASE);
	must(!stall_arena_init(&arena, 32 << 20));
	must(!stall_target_init(&process.target, getpid()));
}

static void check_name(const char name[STALL_SESSION_NAME])
{
	size_t length = strnlen(name, STALL_SESSION_NAME);

	must(length < STALL_SESSION_NAME);
	for (size_t i = 0; i < length; i++)
		must((unsigned char)name[i] >= ' ');
}

static void check(const struct stall_sessions *sessions)
{
	must(sessions->count + sessions->rejected <= IMAGE_THREADS);
	for (size_t i = 0; i < sessions->count; i++) {
		const struct stall_session *session = &sessions->sessions[i];

		must(session->thread < IMAGE_THREADS && session->connection);
		must(session->statement_size <= STALL_SESSION_STATEMENT);
		must(session->statement || !session->statement_size);
		check_name(session->user);
		check_name(session->host);
		check_name(session->database);
		check_name(session->state);
	}
}

static void read_by(const struct stall_layout *layout)
{
	struct stall_thread threads[IMAGE_THREADS] = {};
	struct stall_snapshot snapshot = {
		.arena = &arena,
		.processes = &process,
		.process_count = 1,
		.threads = threads,
		.thread_count = IMAGE_THREADS,
		.wall_ns = UINT64_C(1700000005000000000),
	};
	struct stall_sessions sessions = {};
	struct stall_json json;

	for (int i = 0; i < IMAGE_THREADS; i++)
		threads[i].fs_base = IMAGE_BASE + IMAGE_BLOCKS * (i + 1);
	stall_arena_reset(&arena, SIZE_MAX);
	struct stall_error *err = stall_sessions_read(&snapshot, layout, &sessions);
	must(!err || err->code == STALL_ERROR_LIMIT);
	stall_error_destroy(err);
	check(&sessions);
	stall_json_init(&json);
	stall_sessions_write(&sessions, &snapshot, &json);
	must(!json.failed && memchr(json.data, '\n', json.size) == json.data + json.size - 1);
	stall_json_deinit(&json);
	stall_sessions_deinit(&sessions);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct stall_layout layout = {};
	char text[IMAGE_LAYOUT + 1] = "";

	if (!memory)
		prepare();
	memcpy(text, data, size < IMAGE_LAYOUT ? size : IMAGE_LAYOUT);
	memset(memory, 0, IMAGE_MEMORY);
	if (size > IMAGE_LAYOUT)
		memcpy(memory, data + IMAGE_LAYOUT,
		       size - IMAGE_LAYOUT < IMAGE_MEMORY ? size - IMAGE_LAYOUT : IMAGE_MEMORY);
	struct stall_error *err = stall_layout_add(&layout, text);
	if (!err)
		read_by(&layout);
	stall_error_destroy(err);
	stall_layout_deinit(&layout);
	return 0;
}
