// SPDX-License-Identifier: Apache-2.0
#include "poke/poke_command.h"
#include "base/file_class.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/json_writer.h"
#include "base/messages.h"
#include "base/privileges.h"
#include "poke/poke_files.h"
#include "poke/poke_process.h"
#include "poke/poke_record.h"
#include "poke/poke_word.h"
#include "poke/supervisor.h"
#include "proc/descriptors.h"

#define SCHEMA "stallscope.poke-probe/1"
#define MAX_PROGRAM (UINT64_C(4) << 30)
#define MAX_DESCRIPTORS 65536
#define BY "command"

static void poke_init(struct stall_poke *poke, const struct stall_poke_options *options,
		      const struct stall_poke_process *process)
{
	*poke = (struct stall_poke){.process = *process, .file_count = options->file_count};
	if (options->word_count)
		poke->word = options->words[0];
	memcpy(poke->files, options->files, sizeof(poke->files));
}

static const char *state_name(enum stall_poke_state state)
{
	static const char *const names[] = {
		[STALL_POKE_OLD] = "old", [STALL_POKE_NEW] = "new", [STALL_POKE_OTHER] = "other"};

	return names[state];
}

static void write_identity(struct stall_json *json, const struct stall_poke_process *process,
			   const struct stall_poke_program *program)
{
	const struct stall_poke_identity *identity = &process->identity;
	char text[sizeof(identity->head) + sizeof(identity->run) + 80];
	char head[2 * STALL_POKE_HEAD + 1];
	const char state[] = {program->state, 0};

	snprintf(text, sizeof(text), "%llu:%llu:%llu:%s%s%s",
		 (unsigned long long)identity->start_time,
		 (unsigned long long)identity->start_stack, (unsigned long long)identity->base,
		 identity->head, identity->run[0] ? ":" : "", identity->run);
	stall_json_member_int(json, "pid", process->target.pid);
	stall_json_member_string(json, "identity", text);
	stall_json_member_uint(json, "start_time", identity->start_time);
	stall_json_member_uint(json, "base", identity->base);
	stall_json_member_string(json, "state", state);
	stall_json_member_string(json, "exe", program->exe);
	for (int i = 0; i < STALL_POKE_HEAD; i++)
		snprintf(head + 2 * i, 3, "%02x", program->head[i]);
	stall_json_member_string(json, "head", head);
}

static void write_words(struct stall_json *json, const struct stall_poke_process *process,
			const struct stall_poke_options *options)
{
	stall_json_key(json, "words");
	stall_json_open(json, '[');
	for (size_t i = 0; i < options->word_count; i++) {
		const struct stall_poke_word *word = &options->words[i];
		uint64_t value = 0;
		_cleanup_error_ struct stall_error *err = stall_poke_word_check(process, word);

		stall_json_open(json, '{');
		stall_json_member_uint(json, "address", word->address);
		stall_json_member_uint(json, "size", word->size);
		if (!err)
			err = stall_poke_word_read(process, word, &value);
		if (err)
			stall_json_member_string(json, "error", err->message);
		else
			stall_json_member_uint(json, "value", value);
		stall_json_close(json, '}');
	}
	stall_json_close(json, ']');
}

// Of the files that were named: how many of them are as before, and as the poke sets them.
static struct stall_error *write_state(struct stall_json *json,
				       const struct stall_poke_process *process,
				       const struct stall_poke_options *options)
{
	struct stall_poke poke;
	size_t direct, open;

	if (!options->file_count)
		return NULL;
	poke_init(&poke, options, process);
	poke.word.size = 0;
	struct stall_error *err = stall_poke_files_count(&poke, &direct, &open);
	if (err)
		return err;
	stall_json_member_uint(json, "direct", direct);
	stall_json_member_uint(json, "open", open);
	return NULL;
}

struct visit {
	struct stall_json *json;
	const struct stall_target *target;
	struct stall_error *err;
};

static struct stall_error *write_file(struct stall_json *json, const struct stall_target *target,
				      const struct stall_descriptor *descriptor)
{
	enum stall_file_class class = stall_file_class(descriptor->path, false);
	const struct stall_poke_file file = {
		.fd = descriptor->fd,
		.dev = descriptor->status.dev,
		.ino = descriptor->status.ino,
	};

	if (class == STALL_FILE_OTHER || !S_ISREG(descriptor->status.mode))
		return NULL;
	struct stall_open_file open;
	struct stall_error *err = stall_open_file_get(target, &file, &open);
	if (err || open.copy < 0)
		return err;
	struct stall_alignment alignment = stall_alignment_read(open.copy);
	close(open.copy);
	stall_json_open(json, '{');
	stall_json_member_int(json, "fd", file.fd);
	stall_json_member_string(json, "path", descriptor->path);
	stall_json_member_string(json, "class", stall_file_class_name(class));
	stall_json_member_uint(json, "dev", file.dev);
	stall_json_member_uint(json, "ino", file.ino);
	stall_json_member_bool(json, "direct", open.flags & O_DIRECT);
	stall_json_member_uint(json, "memory_alignment", alignment.memory);
	stall_json_member_uint(json, "offset_alignment", alignment.offset);
	stall_json_close(json, '}');
	return NULL;
}

static bool visit_file(void *arg, const struct stall_descriptor *descriptor)
{
	struct visit *visit = arg;

	visit->err = write_file(visit->json, visit->target, descriptor);
	return !visit->err;
}

static struct stall_error *write_open_files(struct stall_json *json,
					    const struct stall_target *target)
{
	struct visit visit = {json, target, NULL};
	size_t lost;

	stall_json_key(json, "files");
	stall_json_open(json, '[');
	struct stall_error *err =
		stall_descriptors_visit(target, MAX_DESCRIPTORS, visit_file, &visit, &lost);
	stall_json_close(json, ']');
	return err ? err : visit.err;
}

static struct stall_error *write_hash(struct stall_json *json, const struct stall_target *target)
{
	char text[STALL_SHA256_TEXT];
	_cleanup_close_ int fd = openat(target->procfd, "exe", O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return stall_error_os(errno, "cannot open the program of process %d", target->pid);
	struct stall_error *err = stall_sha256_file(fd, MAX_PROGRAM, text);
	if (!err)
		stall_json_member_string(json, "sha256", text);
	return err;
}

static struct stall_error *look(struct stall_json *json, const struct stall_poke_options *options,
				const struct stall_poke_process *process,
				const struct stall_poke_program *program)
{
	const struct stall_target *target = &process->target;
	struct stall_error *err = NULL;

	write_identity(json, process, program);
	if (options->hash)
		err = write_hash(json, target);
	if (!err)
		err = write_state(json, process, options);
	if (!err)
		write_words(json, process, options);
	if (!err && options->open_files)
		err = write_open_files(json, target);
	// What was read belongs to that process only if it was there all the time.
	return err ? err : stall_poke_process_check(process);
}

// A supervisor that found nothing to undo at its deadline, because this process was stopped before
// its write, has gone.
static struct stall_error *check_in_time(const struct stall_poke *poke, int record)
{
	enum stall_poke_state found;

	if (!stall_poke_record_is_over(record))
		return NULL;
	stall_error_destroy(stall_poke_undo(poke, &found));
	return stall_error_create(STALL_ERROR_LATE,
				  "the time of the poke was over before it was written to process "
				  "%d: it was undone",
				  poke->process.target.pid);
}

static struct stall_error *write_poke(const struct stall_poke *poke, int record,
				      const struct stall_poke_options *options)
{
	struct stall_error *err = stall_poke_check(poke);

	if (!err && options->duration_ns)
		err = stall_supervisor_start(poke, record, options->duration_ns);
	if (!err)
		err = stall_poke_set(poke);
	return err ? err : check_in_time(poke, record);
}

static struct stall_error *set(const struct stall_poke_options *options,
			       const struct stall_poke *poke, char state, int record)
{
	struct stall_error *err = stall_poke_identity_check(&poke->process, &options->identity);

	// Somebody else works on it, and may be in the middle of a change.
	if (!err && (state == 'T' || state == 't'))
		err = stall_error_create(STALL_ERROR_AGAIN,
					 "process %d is stopped, by a signal or a debugger: it is "
					 "not changed",
					 options->pid);
	if (!err)
		err = write_poke(poke, record, options);
	if (!err)
		return stall_poke_record_add(record, STALL_POKE_WRITTEN, BY, NULL);
	if (!stall_poke_record_is_over(record))
		stall_error_destroy(
			stall_poke_record_add(record, STALL_POKE_NOT_WRITTEN, BY, err->message));
	return err;
}

static struct stall_error *undo(const struct stall_poke_options *options,
				const struct stall_poke *poke, int record,
				enum stall_poke_state *ret_found)
{
	struct stall_error *err;

	if (stall_poke_record_is_over(record))
		return stall_error_create(STALL_ERROR_AGAIN,
					  "the poke of process %d is undone already", options->pid);
	err = stall_poke_identity_check(&poke->process, &options->identity);
	if (!err)
		err = stall_poke_undo(poke, ret_found);
	if (!err)
		return stall_poke_record_add(record, STALL_POKE_UNDONE, BY, state_name(*ret_found));
	// What was changed is gone with the memory that it was in.
	bool ended = err->code == STALL_ERROR_NO_PROCESS;
	stall_error_destroy(stall_poke_record_add(record,
						  ended ? STALL_POKE_ENDED : STALL_POKE_REFUSED, BY,
						  err->message));
	return err;
}

static struct stall_error *change(struct stall_json *json, const struct stall_poke_options *options,
				  const struct stall_poke_process *process, char state)
{
	// The memory is open.
	const struct stall_privileges privileges = {.pokes = true};
	enum stall_poke_state found = STALL_POKE_OLD;
	_cleanup_close_ int record = -1;
	struct stall_poke poke;
	struct stall_error *err = stall_privileges_reduce(&privileges);

	if (!err)
		err = stall_poke_record_open(options->record, &record);
	if (err)
		return err;
	if (!stall_poke_record_lock(record, 5000))
		return stall_error_create(STALL_ERROR_LATE,
					  "another process works on the undo record %s: try again",
					  options->record);
	poke_init(&poke, options, process);
	err = options->action == STALL_POKE_SET ? set(options, &poke, state, record)
						: undo(options, &poke, record, &found);
	if (err)
		return err;
	stall_json_member_int(json, "pid", options->pid);
	stall_json_member_string(json, "done", options->action == STALL_POKE_SET ? "set" : "undo");
	stall_json_member_string(json, "found", state_name(found));
	return NULL;
}

struct stall_error *stall_poke_run(const struct stall_poke_options *options, int out)
{
	_cleanup_(stall_json_deinit) struct stall_json json;
	struct stall_poke_program program;
	struct stall_poke_process process;

	stall_json_init(&json);
	stall_json_open(&json, '{');
	stall_json_member_string(&json, "schema", SCHEMA);
	bool writes = options->action != STALL_POKE_LOOK && options->word_count;
	struct stall_error *err = stall_poke_process_init(&process, options->pid, writes, &program);
	if (err)
		return err;
	err = options->action == STALL_POKE_LOOK ? look(&json, options, &process, &program)
						 : change(&json, options, &process, program.state);
	stall_poke_process_deinit(&process);
	if (err)
		return err;
	stall_json_close(&json, '}');
	stall_json_newline(&json);
	return stall_lines_write(&json, out);
}
