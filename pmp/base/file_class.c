// SPDX-License-Identifier: Apache-2.0
#include "base/file_class.h"

#include <string.h>

static const char *const class_names[] = {
	[STALL_FILE_REDO] = "redo",   [STALL_FILE_DOUBLEWRITE] = "doublewrite",
	[STALL_FILE_DATA] = "data",   [STALL_FILE_BINLOG] = "binlog",
	[STALL_FILE_UNDO] = "undo",   [STALL_FILE_TEMPORARY] = "temporary",
	[STALL_FILE_RELAY] = "relay", [STALL_FILE_OTHER] = "other",
};

const char *stall_file_class_name(enum stall_file_class class)
{
	return class_names[class];
}

// The first match counts. `folder` is the end of the path before the name, "" anywhere. In both, *
// is any text without a slash and % digits, at least one.
static const struct {
	const char *folder, *name;
	enum stall_file_class class;
} rules[] = {
	// InnoDB: one to 100 files before MySQL 8.0.30, one in MariaDB 10.5, a folder since 8.0.30.
	{"", "ib_logfile%", STALL_FILE_REDO},
	{"#innodb_redo", "*", STALL_FILE_REDO},
	{"", "aria_log.%", STALL_FILE_REDO},
	{"", "aria_log_control", STALL_FILE_REDO},
	{".rocksdb", "%.log", STALL_FILE_REDO},
	{"#rocksdb", "%.log", STALL_FILE_REDO},
	{"", "log%.tokulog%", STALL_FILE_REDO},
	{"pg_wal", "*", STALL_FILE_REDO},
	{"pg_xlog", "*", STALL_FILE_REDO},
	{"", "*.dblwr", STALL_FILE_DOUBLEWRITE},
	{"", "*.bdblwr", STALL_FILE_DOUBLEWRITE},
	{"", "xb_doublewrite", STALL_FILE_DOUBLEWRITE}, // Percona Server 5.7
	{"", "undo_%", STALL_FILE_UNDO},
	{"", "undo%", STALL_FILE_UNDO},
	{"", "*.ibu", STALL_FILE_UNDO},
	{"", "#sql*", STALL_FILE_TEMPORARY},
	{"", "ibtmp%", STALL_FILE_TEMPORARY},
	{"#innodb_temp", "*", STALL_FILE_TEMPORARY},
	{"", "temp_%.ibt", STALL_FILE_TEMPORARY},
	{"", "mysql_temptable.*", STALL_FILE_TEMPORARY},
	{"pgsql_tmp", "*", STALL_FILE_TEMPORARY},
	{"base/%", "t%_%*", STALL_FILE_TEMPORARY},
	{"", "*-relay-bin.*", STALL_FILE_RELAY},
	{"", "*-relay-bin-*.*", STALL_FILE_RELAY}, // of a channel
	{"", "relay-bin.*", STALL_FILE_RELAY},
	{"", "*relay-log.%", STALL_FILE_RELAY},
	{"", "*relay-log.in*", STALL_FILE_RELAY},
	{"", "*-bin.%", STALL_FILE_BINLOG},
	{"", "*-bin.index", STALL_FILE_BINLOG},
	{"", "binlog.%", STALL_FILE_BINLOG},
	{"", "binlog.index", STALL_FILE_BINLOG},
	{"", "ibdata%", STALL_FILE_DATA},
	{"", "*.ibd", STALL_FILE_DATA},
	{"", "*.MYD", STALL_FILE_DATA},
	{"", "*.MYI", STALL_FILE_DATA},
	{"", "*.MAD", STALL_FILE_DATA},
	{"", "*.MAI", STALL_FILE_DATA},
	{"", "*.CSV", STALL_FILE_DATA},
	{"", "*.ARZ", STALL_FILE_DATA},
	{"", "*.sst", STALL_FILE_DATA},
	{"base/%", "%*", STALL_FILE_DATA},
	{"global", "%*", STALL_FILE_DATA},
	{"pg_tblspc/%/PG_*/%", "%*", STALL_FILE_DATA},
};

static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

// Our patterns have few wildcards: the cost is bounded by the path's length to the power of their
// number.
static bool matches(const char *pattern, const char *text)
{
	for (; *pattern; pattern++, text++) {
		if (*pattern == '*') {
			for (; !matches(pattern + 1, text); text++)
				if (!*text || *text == '/')
					return false;
			return true;
		}
		if (*pattern == '%') {
			if (!is_digit(*text))
				return false;
			while (is_digit(text[1]))
				text++;
			continue;
		}
		if (*pattern != *text)
			return false;
	}
	return !*text;
}

// Whether the path, up to `length`, ends in folders that match.
static bool is_in(const char *folder, const char *path, size_t length)
{
	char text[128];

	if (!*folder)
		return true;
	// From each slash on; a folder that is longer than any of ours matches none.
	for (size_t at = length; at > 0 && length - at < sizeof(text); at--) {
		if (at != 1 && path[at - 1] != '/')
			continue;
		size_t start = path[at - 1] == '/' ? at : at - 1;
		memcpy(text, path + start, length - start);
		text[length - start] = '\0';
		if (matches(folder, text))
			return true;
	}
	return false;
}

// Any name may be given to the binary log: NAME.000001.
static bool has_sequence_number(const char *name)
{
	const char *dot = strrchr(name, '.');
	size_t digits = dot ? strspn(dot + 1, "0123456789") : 0;

	return digits >= 6 && !dot[1 + digits];
}

enum stall_file_class stall_file_class(const char *path, bool deleted)
{
	const char *slash = strrchr(path, '/');
	const char *name = slash ? slash + 1 : path;
	size_t length = slash ? (size_t)(slash - path) : 0;

	for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++)
		if (matches(rules[i].name, name) && is_in(rules[i].folder, path, length))
			return rules[i].class;
	if (has_sequence_number(name))
		return STALL_FILE_BINLOG;
	// Sort files, binary log caches: they have no name while they are used.
	return deleted ? STALL_FILE_TEMPORARY : STALL_FILE_OTHER;
}
