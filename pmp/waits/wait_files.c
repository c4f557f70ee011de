// SPDX-License-Identifier: Apache-2.0
#include "waits/wait_files.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "base/cleanup.h"

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
	size_t length = slash ? slash - path : 0;

	for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++)
		if (matches(rules[i].name, name) && is_in(rules[i].folder, path, length))
			return rules[i].class;
	if (has_sequence_number(name))
		return STALL_FILE_BINLOG;
	// Sort files, binary log caches: they have no name while they are used.
	return deleted ? STALL_FILE_TEMPORARY : STALL_FILE_OTHER;
}

#define MAX_DESCRIPTORS 65536
#define KERNEL_MINOR_BITS 20 // include/linux/kdev_t.h

bool stall_wait_file_is(const struct stall_wait_key *key, uint64_t st_dev, uint64_t st_ino)
{
	uint64_t dev = (uint64_t)major(st_dev) << KERNEL_MINOR_BITS | minor(st_dev);

	return key->id == st_ino && key->id2 >> 32 == dev;
}

static struct stall_error *copy(const char *text, char **ret)
{
	char *path = strdup(text);

	if (!path)
		return &stall_enomem;
	*ret = path;
	return NULL;
}

bool stall_wait_file_link(const struct stall_target *target, const char *link, char *ret,
			  size_t size)
{
	char path[PATH_MAX], root[PATH_MAX];
	ssize_t length = readlinkat(target->procfd, link, path, sizeof(path) - 1);

	if (length <= 0)
		return false;
	path[length] = '\0';
	stall_target_root(target, root, sizeof(root));
	snprintf(ret, size, "%s", stall_path_in_root(path, root));
	return true;
}

bool stall_wait_file_cut_deleted(char *path)
{
	static const char suffix[] = " (deleted)";
	size_t length = strlen(path), cut = sizeof(suffix) - 1;

	if (length <= cut || strcmp(path + length - cut, suffix) != 0)
		return false;
	path[length - cut] = '\0';
	return true;
}

bool stall_wait_file_stat(int folder, const char *path, int flags, struct statx *ret)
{
	return statx(folder, path, flags | AT_STATX_DONT_SYNC | AT_NO_AUTOMOUNT, STATX_BASIC_STATS,
		     ret) == 0;
}

bool stall_wait_file_at(const struct stall_target *target, int fd, char *ret_path, size_t size,
			struct statx *ret_status, bool *ret_deleted)
{
	char link[32];

	snprintf(link, sizeof(link), "fd/%d", fd);
	// In this order: a file that is unlinked in between is unlinked, under the path that was
	// read. The other way round the mark would be missing, and the path have it in its name.
	if (!stall_wait_file_link(target, link, ret_path, size) ||
	    !stall_wait_file_stat(target->procfd, link, 0, ret_status))
		return false;
	*ret_deleted = !ret_status->stx_nlink;
	if (*ret_deleted)
		stall_wait_file_cut_deleted(ret_path);
	return true;
}

// Whether the last name is the one that the kernel saw, which is cut where it is long. Overlay
// filesystems show other device and inode numbers to stat(2) than their files have.
static bool has_name(const char *path, const struct stall_wait_file *file)
{
	const char *slash = strrchr(path, '/');
	const char *name = slash ? slash + 1 : path;
	size_t length = strnlen(file->names[0], STALL_FILE_NAME);

	if (!file->name_count || !length)
		return false;
	if (length < STALL_FILE_NAME - 1)
		return strlen(name) == length && !memcmp(name, file->names[0], length);
	return !strncmp(name, file->names[0], length);
}

static bool path_of_descriptor(const struct stall_target *target,
			       const struct stall_wait_file *file, char *ret, size_t size,
			       bool *ret_deleted)
{
	struct statx status;

	if (file->fd < 0 || !stall_wait_file_at(target, file->fd, ret, size, &status, ret_deleted))
		return false;
	return stall_wait_file_is(&file->key, makedev(status.stx_dev_major, status.stx_dev_minor),
				  status.stx_ino) ||
	       has_name(ret, file);
}

struct stall_error *stall_wait_file_absolute(const char *cwd, const char *path, char **ret)
{
	char *joined;

	// ".../": its beginning is lost.
	if (path[0] == '/' || !cwd[0] || !strncmp(path, ".../", 4))
		return copy(path, ret);
	while (!strncmp(path, "./", 2))
		path += 2;
	if (asprintf(&joined, "%s%s%s", cwd, !strcmp(cwd, "/") ? "" : "/", path) < 0)
		return &stall_enomem;
	*ret = joined;
	return NULL;
}

struct stall_error *stall_wait_file_join(const struct stall_wait_file *file, char **ret)
{
	char path[STALL_FILE_NAMES * (STALL_FILE_NAME + 1) + 8];
	size_t count = file->name_count < STALL_FILE_NAMES ? file->name_count : STALL_FILE_NAMES;
	// The names end at the mount, or where there was room for no more.
	size_t length = snprintf(path, sizeof(path), "...");

	for (size_t i = count; i > 0; i--)
		length += snprintf(path + length, sizeof(path) - length, "/%.*s",
				   STALL_FILE_NAME - 1, file->names[i - 1]);
	return copy(path, ret);
}

struct stall_error *stall_wait_file_path(const struct stall_target *target,
					 const struct stall_wait_file *file, char **ret,
					 bool *ret_deleted)
{
	char path[PATH_MAX + 16], cwd[PATH_MAX] = "", given[STALL_PATH + 1];
	bool deleted = false;
	struct stall_error *err;

	if (path_of_descriptor(target, file, path, sizeof(path), &deleted)) {
		err = copy(path, ret);
	} else if (file->path[0]) {
		memcpy(given, file->path, STALL_PATH);
		given[STALL_PATH] = '\0';
		// The path of a record with an inode number was not an argument: it was searched
		// for.
		deleted = file->key.id2 && stall_wait_file_cut_deleted(given);
		stall_wait_file_link(target, "cwd", cwd, sizeof(cwd));
		err = stall_wait_file_absolute(cwd, given, ret);
	} else {
		err = stall_wait_file_join(file, ret);
	}
	if (!err)
		*ret_deleted = deleted;
	return err;
}

struct stall_error *stall_wait_file_search(const struct stall_target *target,
					   const struct stall_wait_key *key, char **ret,
					   bool *ret_deleted)
{
	struct stall_wait_file file = {.key = *key};
	char path[PATH_MAX + 16];
	size_t seen = 0;

	*ret = NULL;
	_cleanup_closedir_ DIR *dir = stall_target_open_files(target);
	if (!dir)
		return errno == ENOMEM ? &stall_enomem : NULL;
	for (; seen < MAX_DESCRIPTORS && (file.fd = stall_next_open_file(dir)) >= 0; seen++) {
		if (path_of_descriptor(target, &file, path, sizeof(path), ret_deleted))
			return copy(path, ret);
	}
	return NULL;
}
