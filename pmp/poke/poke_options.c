// SPDX-License-Identifier: Apache-2.0
#include "poke/poke_options.h"

#include <getopt.h>
#include <limits.h>
#include <string.h>

#include "base/options_text.h"
#include "poke/poke_files.h"
#include "poke/poke_word.h"

#define MAX_DEADLINE_MS 3600000

const char stall_poke_help[] =
	"stallscope-poke: changes one word of a live process, or O_DIRECT of its open files, and "
	"back\n"
	"\n"
	"Usage:\n"
	"  stallscope-poke --pid PID [--word ADDRESS:SIZE:OLD:NEW ...] [--file FD:DEV:INO ...]\n"
	"                  [--hash] [--open-files]\n"
	"                          what would be changed, as JSON: nothing is written\n"
	"  stallscope-poke --pid PID --process IDENTITY --do set|undo --record FILE\n"
	"                  --word ADDRESS:SIZE:OLD:NEW | --file FD:DEV:INO ... [--for SECONDS]\n"
	"  stallscope-poke --version | --help\n"
	"\n"
	"RISKS: --do writes to the memory of a live process, and checks no list of what is "
	"allowed:\n"
	"`stallscope poke` does. It is for root, or for the user of the process.\n"
	"\n"
	"Options:\n"
	"  --pid PID              the process\n"
	"  --word A:SIZE:OLD:NEW  a word: address and values hexadecimal; 1, 2, 4 or 8 bytes\n"
	"  --file FD:DEV:INO      an open file of the process\n"
	"  --process IDENTITY     as it is printed without --do; any other process is refused\n"
	"  --do set|undo          write\n"
	"  --record FILE          the undo record, which exists: events are appended\n"
	"  --for SECONDS          set: undo it after this time, by two supervisors\n"
	"  --hash                 the SHA-256 of the program's file\n"
	"  --open-files           the open files of a known class\n"
	"  --deadline MS          give up after this time (20000)\n"
	"\n"
	"Exit status: 0 done; 1 refused or failed; 2 wrong usage.\n";

enum {
	PID = 256,
	WORD,
	FILES,
	PROCESS,
	RECORD,
	DO,
	FOR,
	HASH,
	OPEN_FILES,
	DEADLINE,
	HELP,
	VERSION
};

static const struct option known[] = {
	{"pid", required_argument, NULL, PID},
	{"word", required_argument, NULL, WORD},
	{"file", required_argument, NULL, FILES},
	{"process", required_argument, NULL, PROCESS},
	{"record", required_argument, NULL, RECORD},
	{"do", required_argument, NULL, DO},
	{"for", required_argument, NULL, FOR},
	{"hash", no_argument, NULL, HASH},
	{"open-files", no_argument, NULL, OPEN_FILES},
	{"deadline", required_argument, NULL, DEADLINE},
	{"help", no_argument, NULL, HELP},
	{"version", no_argument, NULL, VERSION},
	{},
};

static struct stall_error *set_pid(struct stall_poke_options *options, const char *text)
{
	uint64_t pid;
	struct stall_error *err = stall_parse_number("pid", text, 1, INT_MAX, &pid);

	if (err)
		return err;
	if (options->pid)
		return stall_usage("one --pid");
	options->pid = (pid_t)pid;
	return NULL;
}

static struct stall_error *add_word(struct stall_poke_options *options, const char *text)
{
	if (options->word_count == STALL_POKE_MAX_WORDS)
		return stall_usage("more than %d --word", STALL_POKE_MAX_WORDS);
	return stall_poke_word_parse(text, &options->words[options->word_count++]);
}

static struct stall_error *add_file(struct stall_poke_options *options, const char *text)
{
	if (options->file_count == STALL_POKE_MAX_FILES)
		return stall_usage("more than %d --file", STALL_POKE_MAX_FILES);
	return stall_poke_file_parse(text, &options->files[options->file_count++]);
}

static struct stall_error *set_action(struct stall_poke_options *options, const char *text)
{
	if (strcmp(text, "set") && strcmp(text, "undo"))
		return stall_usage("--do \"%.40s\": set or undo", text);
	options->action = strcmp(text, "set") ? STALL_POKE_UNDO : STALL_POKE_SET;
	return NULL;
}

static struct stall_error *apply(struct stall_poke_options *options, int id, const char *value)
{
	switch (id) {
	case PID:
		return set_pid(options, value);
	case WORD:
		return add_word(options, value);
	case FILES:
		return add_file(options, value);
	case PROCESS:
		options->has_identity = true;
		return stall_poke_identity_parse(value, &options->identity);
	case RECORD:
		options->record = value;
		return NULL;
	case DO:
		return set_action(options, value);
	case FOR:
		return stall_parse_seconds("for", value, &options->duration_ns);
	case HASH:
		options->hash = true;
		return NULL;
	case OPEN_FILES:
		options->open_files = true;
		return NULL;
	default:
		return stall_parse_number("deadline", value, 1, MAX_DEADLINE_MS,
					  &options->deadline_ms);
	}
}

static struct stall_error *check(const struct stall_poke_options *options)
{
	if (!options->pid)
		return stall_usage("--pid is missing");
	if (options->action != STALL_POKE_SET && options->duration_ns)
		return stall_usage("--for goes with --do set");
	if (options->action == STALL_POKE_LOOK)
		return NULL;
	if (!options->has_identity || !options->record)
		return stall_usage("--do needs --process and --record");
	if (options->word_count + !!options->file_count != 1)
		return stall_usage("--do changes one --word, or files");
	return NULL;
}

struct stall_error *stall_poke_options_init(struct stall_poke_options *options, int argc,
					    char **argv)
{
	struct stall_error *err = NULL;
	int id;

	*options = (struct stall_poke_options){.deadline_ms = STALL_POKE_DEADLINE_MS};
	opterr = 0;
	while (!err && (id = getopt_long(argc, argv, "+:hp:V", known, NULL)) != -1) {
		const char *given = argv[optind - 1];

		if (id == ':')
			return stall_usage("%s: its value is missing", given);
		if (id == '?')
			return stall_usage("%s: unknown option", given);
		if (id == 'h' || id == HELP || id == 'V' || id == VERSION) {
			options->action =
				id == 'h' || id == HELP ? STALL_POKE_HELP : STALL_POKE_VERSION;
			return NULL;
		}
		err = apply(options, id == 'p' ? PID : id, optarg);
	}
	if (!err && optind < argc)
		err = stall_usage("unexpected argument \"%s\"", argv[optind]);
	return err ? err : check(options);
}
