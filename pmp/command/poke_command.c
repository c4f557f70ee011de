// SPDX-License-Identifier: Apache-2.0
#include "command/poke_command.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/json_writer.h"
#include "base/messages.h"
#include "base/options_text.h"
#include "poke/poke_files.h"
#include "poke/poke_process.h"
#include "poke/poke_record.h"
#include "poke/poke_word.h"
#include "poke/supervisor.h"
#include "waits/wait_files.h"

#define SCHEMA "stallscope.poke-probe/1"
#define MAX_PROGRAM (UINT64_C(4) << 30)
#define MAX_DESCRIPTORS 65536
#define BY "command"

struct stall_error *stall_poke_option_word(struct stall_poke_options *options, const char *text)
{
	if (options->word_count == STALL_POKE_MAX_WORDS)
		return stall_usage("more than %d --word", STALL_POKE_MAX_WORDS);
	return stall_poke_word_parse(text, &options->words[options->word_count++]);
}

struct stall_error *stall_poke_option_file(struct stall_poke_options *options, const char *text)
{
	if (options->file_count == STALL_POKE_MAX_FILES)
		return stall_usage("more than %d --file", STALL_POKE_MAX_FILES);
	return stall_poke_file_parse(text, &options->files[options->file_count++]);
}

struct stall_error *stall_poke_option_do(struct stall_poke_options *options, const char *text)
{
	if (strcmp(text, "set") && strcmp(text, "undo"))
		return stall_usage("--do \"%.40s\": set or undo", text);
	options->action = strcmp(text, "set") ? STALL_POKE_UNDO : STALL_POKE_SET;
	return NULL;
}

struct stall_error *stall_poke_options_check(const struct stall_poke_options *options,
					     size_t pid_count)
{
	if (pid_count != 1)
		return stall_usage("poke: one --pid");
	if (options->action != STALL_POKE_SET && options->duration_ns)
		return stall_usage("poke: --for goes with --do set");
	if (options->action == STALL_POKE_LOOK)
		return NULL;
	if (!options->has_identity || !options->record)
		return stall_usage("poke: --do needs --process and --record");
	if (options->word_count + !!options->file_count != 1)
		return stall_usage("poke: --do changes one --word, or files");
	return NULL;
}

static void poke_init(struct stall_poke *poke, const struct stall_poke_options *options,
		      const struct stall_target *target)
{
	*poke = (struct stall_poke){.target = *target, .file_count = options->file_count};
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

static void write_identity(struct stall_json *json, const struct stall_poke_process *process)
{
	const struct stall_poke_identity *identity = &process->identity;
	char text[sizeof(identity->head) + 80], head[2 * STALL_POKE_HEAD + 1];
	const char state[] = {process->state, 0};

	snprintf(text, sizeof(text), "%llu:%llu:%llu:%s", (unsigned long long)identity->start_time,
		 (unsigned long long)identity->start_stack, (unsigned long long)identity->base,
		 identity->head);
	stall_json_member_int(json, "pid", process->target.pid);
	stall_json_member_string(json, "identity", text);
	stall_json_member_uint(json, "start_time", identity->start_time);
	stall_json_member_uint(json, "base", identity->base);
	stall_json_member_string(json, "state", state);
	stall_json_member_string(json, "exe", process->exe);
	for (int i = 0; i < STALL_POKE_HEAD; i++)
		snprintf(head + 2 * i, 3, "%02x", process->head[i]);
	stall_json_member_string(json, "head", head);
}

static void write_words(struct stall_json *json, const struct stall_target *target,
			const struct stall_poke_options *options)
{
	stall_json_key(json, "words");
	stall_json_open(json, '[');
	for (size_t i = 0; i < options->word_count; i++) {
		const struct stall_poke_word *word = &options->words[i];
		uint64_t value = 0;
		_cleanup_error_ struct stall_error *err = stall_poke_word_check(target, word);

		stall_json_open(json, '{');
		stall_json_member_uint(json, "address", word->address);
		stall_json_member_uint(json, "size", word->size);
		if (!err)
			err = stall_poke_word_read(target, word, &value);
		if (err)
			stall_json_member_string(json, "error", err->message);
		else
			stall_json_member_uint(json, "value", value);
		stall_json_close(json, '}');
	}
	stall_json_close(json, ']');
}

// Of the files that were named: how many of them are as before, and as the poke sets them.
static struct stall_error *write_state(struct stall_json *json, const struct stall_target *target,
				       const struct stall_poke_options *options)
{
	struct stall_poke poke;
	size_t direct, open;

	if (!options->file_count)
		return NULL;
	poke_init(&poke, options, target);
	poke.word.size = 0;
	struct stall_error *err = stall_poke_files_count(&poke, &direct, &open);
	if (err)
		return err;
	stall_json_member_uint(json, "direct", direct);
	stall_json_member_uint(json, "open", open);
	return NULL;
}

static struct stall_error *write_file(struct stall_json *json, const struct stall_target *target,
				      int fd)
{
	char link[40], path[4096];
	struct stat st;

	snprintf(link, sizeof(link), "fd/%d", fd);
	ssize_t size = readlinkat(target->procfd, link, path, sizeof(path) - 1);
	if (size < 0 || fstatat(target->procfd, link, &st, 0) < 0 || !S_ISREG(st.st_mode))
		return NULL; // closed meanwhile, or no file
	path[size] = 0;
	enum stall_file_class class = stall_file_class(path, false);
	if (class == STALL_FILE_OTHER)
		return NULL;
	const struct stall_poke_file file = {.fd = fd, .dev = st.st_dev, .ino = st.st_ino};
	struct stall_open_file open;
	struct stall_error *err = stall_open_file_get(target, &file, &open);
	if (err || open.copy < 0)
		return err;
	struct stall_alignment alignment = stall_alignment_read(open.copy);
	close(open.copy);
	stall_json_open(json, '{');
	stall_json_member_int(json, "fd", fd);
	stall_json_member_string(json, "path", path);
	stall_json_member_string(json, "class", stall_file_class_name(class));
	stall_json_member_uint(json, "dev", st.st_dev);
	stall_json_member_uint(json, "ino", st.st_ino);
	stall_json_member_bool(json, "direct", open.flags & O_DIRECT);
	stall_json_member_uint(json, "memory_alignment", alignment.memory);
	stall_json_member_uint(json, "offset_alignment", alignment.offset);
	stall_json_close(json, '}');
	return NULL;
}

static struct stall_error *write_open_files(struct stall_json *json,
					    const struct stall_target *target)
{
	_cleanup_closedir_ DIR *dir = stall_target_open_files(target);
	struct stall_error *err = NULL;
	int count = 0;

	if (!dir)
		return stall_error_os(errno, "cannot read /proc/%d/fd", target->pid);
	stall_json_key(json, "files");
	stall_json_open(json, '[');
	for (int fd; !err && (fd = stall_next_open_file(dir)) >= 0;) {
		if (++count > MAX_DESCRIPTORS)
			return stall_error_create(STALL_ERROR_LIMIT,
						  "process %d has more than %d open files",
						  target->pid, MAX_DESCRIPTORS);
		err = write_file(json, target, fd);
	}
	stall_json_close(json, ']');
	return err;
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
				const struct stall_poke_process *process)
{
	const struct stall_target *target = &process->target;
	struct stall_error *err = NULL;

	write_identity(json, process);
	if (options->hash)
		err = write_hash(json, target);
	if (!err)
		err = write_state(json, target, options);
	if (!err)
		write_words(json, target, options);
	if (!err && options->open_files)
		err = write_open_files(json, target);
	// What was read belongs to that process only if it was there all the time.
	return err ? err : stall_target_check(target);
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
				  poke->target.pid);
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
			       const struct stall_poke_process *process,
			       const struct stall_poke *poke, int record)
{
	struct stall_error *err = NULL;

	// Somebody else works on it, and may be in the middle of a change.
	if (process->state == 'T' || process->state == 't')
		err = stall_error_create(STALL_ERROR_AGAIN,
					 "process %d is stopped, by a signal or a debugger: it is "
					 "not changed",
					 poke->target.pid);
	if (!err)
		err = write_poke(poke, record, options);
	if (!err)
		return stall_poke_record_add(record, STALL_POKE_WRITTEN, BY, NULL);
	if (!stall_poke_record_is_over(record))
		stall_error_destroy(
			stall_poke_record_add(record, STALL_POKE_NOT_WRITTEN, BY, err->message));
	return err;
}

static struct stall_error *undo(const struct stall_poke *poke, int record,
				enum stall_poke_state *ret_found)
{
	struct stall_error *err;

	if (stall_poke_record_is_over(record))
		return stall_error_create(STALL_ERROR_AGAIN,
					  "the poke of process %d is undone already",
					  poke->target.pid);
	err = stall_poke_undo(poke, ret_found);
	if (!err)
		return stall_poke_record_add(record, STALL_POKE_UNDONE, BY, state_name(*ret_found));
	stall_error_destroy(stall_poke_record_add(record, STALL_POKE_REFUSED, BY, err->message));
	return err;
}

static struct stall_error *change(struct stall_json *json, const struct stall_poke_options *options,
				  const struct stall_poke_process *process)
{
	enum stall_poke_state found = STALL_POKE_OLD;
	_cleanup_close_ int record = -1;
	struct stall_poke poke;
	struct stall_error *err = stall_poke_identity_check(process, &options->identity);

	if (!err)
		err = stall_poke_record_open(options->record, &record);
	if (err)
		return err;
	if (!stall_poke_record_lock(record, 5000))
		return stall_error_create(STALL_ERROR_LATE,
					  "another process works on the undo record %s: try again",
					  options->record);
	poke_init(&poke, options, &process->target);
	err = options->action == STALL_POKE_SET ? set(options, process, &poke, record)
						: undo(&poke, record, &found);
	if (err)
		return err;
	stall_json_member_int(json, "pid", process->target.pid);
	stall_json_member_string(json, "done", options->action == STALL_POKE_SET ? "set" : "undo");
	stall_json_member_string(json, "found", state_name(found));
	return NULL;
}

struct stall_error *stall_poke_run(const struct stall_poke_options *options, pid_t pid, int out)
{
	_cleanup_(stall_json_deinit) struct stall_json json;
	struct stall_poke_process *process = malloc(sizeof(*process));
	struct stall_error *err;

	if (!process)
		return &stall_enomem;
	stall_json_init(&json);
	stall_json_open(&json, '{');
	stall_json_member_string(&json, "schema", SCHEMA);
	err = stall_poke_process_init(process, pid);
	if (!err) {
		err = options->action == STALL_POKE_LOOK ? look(&json, options, process)
							 : change(&json, options, process);
		stall_poke_process_deinit(process);
	}
	free(process);
	if (err)
		return err;
	stall_json_close(&json, '}');
	stall_json_newline(&json);
	return stall_lines_write(&json, out);
}
