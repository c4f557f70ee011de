// SPDX-License-Identifier: Apache-2.0
#include "rings/ring_find.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "snapshot/module_file.h"
#include "snapshot/proc_thread.h"
#include "snapshot/read_child.h"

#define MAX_FOLDERS 8
#define MAX_ENTRIES 65536 // of a folder that are checked
#define MAX_CANDIDATES 256
#define MAX_ENVIRONMENT (256 << 10)

// The identity of a process, from files that every user may read.
struct identity {
	struct stall_target target;
	pid_t ns_pid;	      // in its own pid namespace
	uint64_t start_stack; // 0: not known
	char state;	      // of its first thread, as in /proc
	uid_t uids[4];
};

static void identity_deinit(struct identity *identity)
{
	stall_target_deinit(&identity->target);
}

static void read_text(int dirfd, const char *path, char *ret, size_t size)
{
	_cleanup_close_ int fd = openat(dirfd, path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, ret, size - 1);

	ret[n > 0 ? n : 0] = '\0';
}

// Field 28 of the stat file, which the kernel shows only to those who may read the process. (The
// second, in parentheses, is the name. Linux man-pages, proc_pid_stat(5).)
static uint64_t read_start_stack(const struct stall_target *target)
{
	char text[1024], path[32];
	uint64_t value;

	snprintf(path, sizeof(path), "task/%d/stat", target->reader);
	read_text(target->procfd, path, text, sizeof(text));
	const char *at = strrchr(text, ')');
	for (int field = 2; at && field < 28; field++) {
		at = strchr(at, ' ');
		at = at ? at + 1 : NULL;
	}
	return at && sscanf(at, "%" SCNu64, &value) == 1 ? value : 0;
}

static void read_boot_id(char *ret, size_t size)
{
	read_text(AT_FDCWD, "/proc/sys/kernel/random/boot_id", ret, size);
	ret[strcspn(ret, "\n")] = '\0';
}

static struct stall_error *identity_init(struct identity *identity, pid_t pid)
{
	struct stall_thread thread = {};
	char text[4096];

	struct stall_error *err = stall_target_init(&identity->target, pid);
	if (err)
		return err;
	err = stall_proc_status_read(&identity->target, identity->target.reader, &thread);
	if (err) {
		identity_deinit(identity);
		return err;
	}
	identity->ns_pid = thread.ns_tid;
	identity->state = thread.state;
	identity->start_stack = read_start_stack(&identity->target);
	if (identity->target.reader != pid) // its own main thread has ended
		identity->ns_pid = 0;
	read_text(identity->target.procfd, "status", text, sizeof(text));
	const char *line = strstr(text, "\nUid:");
	uid_t *uids = identity->uids;
	if (!line ||
	    sscanf(line, "\nUid: %u %u %u %u", &uids[0], &uids[1], &uids[2], &uids[3]) != 4)
		memset(identity->uids, 0, sizeof(identity->uids));
	return NULL;
}

// Two pid namespaces may have the same pid. For a process that we may not read, only our own
// namespace is certain.
static bool is_other_namespace(const struct stall_ring_header *header,
			       const struct identity *identity)
{
	struct stat st;

	if (!header->pid_namespace)
		return false;
	if (fstatat(identity->target.procfd, "ns/pid", &st, 0) == 0)
		return header->pid_namespace != st.st_ino;
	return stat("/proc/self/ns/pid", &st) == 0 && header->pid_namespace == st.st_ino &&
	       header->pid != identity->target.pid;
}

bool stall_ring_is_of_another_boot(const struct stall_ring_header *header)
{
	char boot_id[sizeof(header->boot_id)];

	read_boot_id(boot_id, sizeof(boot_id));
	return header->boot_id[0] && boot_id[0] && strcmp(header->boot_id, boot_id);
}

static bool is_of(const struct stall_ring_header *header, const struct identity *identity)
{
	return (!identity->ns_pid || header->pid == identity->ns_pid) &&
	       (!header->start_time || header->start_time == identity->target.start_time) &&
	       (!header->start_stack || !identity->start_stack ||
		header->start_stack == identity->start_stack) &&
	       !stall_ring_is_of_another_boot(header) && !is_other_namespace(header, identity);
}

// A user who can write into a folder can put a file with the right name and content there.
static struct stall_error *check_owner(const struct identity *identity,
				       const struct stall_ring *ring)
{
	uid_t uid = stall_ring_owner(ring);

	for (size_t i = 0; i < 4; i++) {
		if (identity->uids[i] == uid)
			return NULL;
	}
	if (uid == 0)
		return NULL;
	return stall_error_create(STALL_ERROR_PERMISSION,
				  "the ring %s belongs to user %u, who is not that of the process; "
				  "remove it",
				  stall_ring_path(ring), uid);
}

struct folders {
	char *paths[MAX_FOLDERS];
	bool refused[MAX_FOLDERS]; // may not be read
	size_t count;
};

static void folders_deinit(struct folders *folders)
{
	for (size_t i = 0; i < folders->count; i++)
		free(folders->paths[i]);
}

__attribute__((format(printf, 2, 3))) static struct stall_error *add_folder(struct folders *folders,
									    const char *format, ...)
{
	va_list args;
	char *path;

	va_start(args, format);
	int rc = vasprintf(&path, format, args);
	va_end(args);
	if (rc < 0)
		return &stall_enomem;
	for (size_t i = 0; i < folders->count; i++) {
		if (!strcmp(folders->paths[i], path) || folders->count == MAX_FOLDERS) {
			free(path);
			return NULL;
		}
	}
	folders->paths[folders->count++] = path;
	return NULL;
}

#define CHOICE "STALLSCOPE_RUNTIME_DIR="

// The environment that the process was started with, where we may read it. It has no size limit.
static struct stall_error *add_chosen(struct folders *folders, const struct stall_target *target)
{
	_cleanup_free_ char *text = malloc(MAX_ENVIRONMENT);

	if (!text)
		return &stall_enomem;
	size_t size = stall_read_child_text(target, "environ", text, MAX_ENVIRONMENT - 1);
	text[size] = '\0';
	for (size_t at = 0; at < size; at += strlen(text + at) + 1) {
		if (!strncmp(text + at, CHOICE, strlen(CHOICE)) && text[at + strlen(CHOICE)] == '/')
			return add_folder(folders, "%s", text + at + strlen(CHOICE));
	}
	return NULL;
}

// The folders that a library loaded by that user tries, as far as it has our environment.
static struct stall_error *add_folders(struct folders *folders, uid_t uid)
{
	const char *chosen = getenv("STALLSCOPE_RUNTIME_DIR"), *xdg = getenv("XDG_RUNTIME_DIR");
	struct stall_error *err = NULL;

	if (chosen && chosen[0])
		err = add_folder(folders, "%s", chosen);
	if (!err)
		err = add_folder(folders, "/run/stallscope");
	if (!err && xdg && xdg[0])
		err = add_folder(folders, "%s/stallscope", xdg);
	if (!err)
		err = add_folder(folders, "/run/user/%u/stallscope", uid);
	if (!err)
		err = add_folder(folders, "/dev/shm/stallscope-%u", uid);
	return err;
}

static char *folders_text(const struct folders *folders)
{
	char *text = NULL;
	size_t size;
	FILE *stream = open_memstream(&text, &size);

	if (!stream)
		return NULL;
	for (size_t i = 0; i < folders->count; i++)
		fprintf(stream, "%s%s%s", i ? ", " : "", folders->paths[i],
			folders->refused[i] ? " (which may not be looked into)" : "");
	return fclose(stream) == 0 ? text : NULL;
}

static bool is_ring_name(const char *name)
{
	size_t length = strlen(name), suffix = strlen(STALL_RING_SUFFIX);

	return length > suffix && !strcmp(name + length - suffix, STALL_RING_SUFFIX);
}

struct search {
	const struct identity *identity; // NULL: any ring
	size_t candidates;
	char *found; // path of the best one so far
	uint64_t created_ns;
	struct stall_error *refused; // the first that could not be read
};

static void search_deinit(struct search *search)
{
	free(search->found);
	stall_error_destroy(search->refused);
}

// Takes the error over.
static void refuse(struct search *search, struct stall_error *err)
{
	if (search->refused)
		stall_error_destroy(err);
	else
		search->refused = err;
}

static struct stall_error *try_file(struct search *search, int dirfd, const char *directory,
				    const char *name)
{
	const struct identity *identity = search->identity;
	_cleanup_(stall_ring_closep) struct stall_ring *ring = NULL;
	_cleanup_free_ char *path = NULL;

	if (asprintf(&path, "%s/%s", directory, name) < 0)
		return &stall_enomem;
	int fd = openat(dirfd, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW | O_NOCTTY);
	if (fd < 0 && errno == ENOENT)
		return NULL;
	struct stall_error *err =
		fd < 0 ? stall_error_os(errno,
					"cannot open the ring %s; be the user that the server ran "
					"as when it made it, or root",
					path)
		       : stall_ring_open_fd(fd, path, &ring);
	if (!err && identity)
		err = check_owner(identity, ring);
	if (err) {
		refuse(search, err);
		return NULL;
	}
	const struct stall_ring_header *header = stall_ring_header(ring);
	if ((identity && !is_of(header, identity)) ||
	    (search->found && header->created_ns <= search->created_ns))
		return NULL;
	free(search->found);
	search->found = no_cleanup_ptr(path);
	search->created_ns = header->created_ns;
	return NULL;
}

// Takes the descriptor over. Names begin with the pid, so that those of others need not be opened.
static struct stall_error *search_folder(struct search *search, int fd, const char *directory)
{
	char prefix[16] = "";
	struct stall_error *err = NULL;
	DIR *dir = fdopendir(fd);

	if (!dir) {
		close(fd);
		return &stall_enomem;
	}
	if (search->identity && search->identity->ns_pid)
		snprintf(prefix, sizeof(prefix), "%d-", search->identity->ns_pid);
	struct dirent *entry;
	for (size_t i = 0; !err && i < MAX_ENTRIES && (entry = readdir(dir)); i++) {
		if (strncmp(entry->d_name, prefix, strlen(prefix)) || !is_ring_name(entry->d_name))
			continue;
		if (search->candidates++ == MAX_CANDIDATES)
			break;
		err = try_file(search, dirfd(dir), directory, entry->d_name);
	}
	closedir(dir);
	return err;
}

static struct stall_error *search_path(struct search *search, const char *path, bool *ret_refused)
{
	const int flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NONBLOCK;
	_cleanup_free_ char *inside = NULL;
	char again[32];
	int fd = open(path, flags);

	if (fd >= 0) {
		struct stall_error *err = search_folder(search, fd, path);
		if (err)
			return err;
	} else if (errno == EACCES || errno == EPERM) {
		*ret_refused = true;
	}
	// A container's own folder, which the host may be allowed to read.
	if (!search->identity || search->found)
		return NULL;
	_cleanup_close_ int root = stall_open_in_root(&search->identity->target, path);
	if (root < 0)
		return NULL;
	snprintf(again, sizeof(again), "/proc/self/fd/%d", root);
	fd = open(again, flags);
	if (fd < 0)
		return NULL;
	if (asprintf(&inside, "/proc/%d/root%s", search->identity->target.pid, path) < 0) {
		close(fd);
		return &stall_enomem;
	}
	return search_folder(search, fd, inside);
}

static struct stall_error *search_all(struct search *search, struct folders *folders)
{
	struct stall_error *err = NULL;

	for (size_t i = 0; !err && i < folders->count; i++)
		err = search_path(search, folders->paths[i], &folders->refused[i]);
	return err;
}

static struct stall_error *not_found(struct search *search, const struct folders *folders)
{
	if (search->refused)
		return no_cleanup_ptr(search->refused);
	_cleanup_free_ char *text = folders_text(folders);
	if (!text)
		return &stall_enomem;
	if (!search->identity)
		return stall_error_create(STALL_ERROR_UNSUPPORTED,
					  "no rings in %s; servers that are started with "
					  "libstallscope.so (stallscope run) make them",
					  text);
	return stall_error_create(STALL_ERROR_UNSUPPORTED,
				  "no ring of process %d in %s; start it with libstallscope.so "
				  "(stallscope run), which makes one at the first long wait, or "
				  "name its ring with --ring",
				  search->identity->target.pid, text);
}

static struct stall_error *find_ring(pid_t pid, const char *directory, char **ret_path)
{
	_cleanup_(identity_deinit) struct identity identity = {
		.target = {.pidfd = -1, .procfd = -1},
	};
	_cleanup_(folders_deinit) struct folders folders = {};
	_cleanup_(search_deinit) struct search search = {.identity = &identity};

	struct stall_error *err = identity_init(&identity, pid);
	if (!err)
		err = directory ? add_folder(&folders, "%s", directory)
				: add_chosen(&folders, &identity.target);
	if (!err && !directory)
		err = add_folders(&folders, identity.uids[1]);
	if (!err)
		err = search_all(&search, &folders);
	if (err)
		return err;
	if (!search.found)
		return not_found(&search, &folders);
	*ret_path = no_cleanup_ptr(search.found);
	return NULL;
}

struct stall_error *stall_ring_find_any(void)
{
	_cleanup_(folders_deinit) struct folders folders = {};
	_cleanup_(search_deinit) struct search search = {};

	struct stall_error *err = add_folders(&folders, geteuid());
	if (!err)
		err = search_all(&search, &folders);
	if (!err && !search.found)
		err = not_found(&search, &folders);
	return err;
}

// `is_found`: the file was not named by the user.
static struct stall_error *check_process(const struct stall_ring *ring, pid_t pid, bool is_found)
{
	_cleanup_(identity_deinit) struct identity identity = {
		.target = {.pidfd = -1, .procfd = -1},
	};
	struct stall_error *err = identity_init(&identity, pid);

	if (!err && !is_of(stall_ring_header(ring), &identity))
		err = stall_error_create(STALL_ERROR_USAGE,
					 "%s: the ring of another process, not of %d",
					 stall_ring_path(ring), pid);
	if (!err && is_found)
		err = check_owner(&identity, ring);
	return err;
}

struct stall_error *stall_ring_open_process(pid_t pid, const char *path, bool writable,
					    struct stall_ring **ret)
{
	_cleanup_(stall_ring_closep) struct stall_ring *ring = NULL;
	_cleanup_free_ char *found = NULL;
	struct stat st;

	if (!path || (stat(path, &st) == 0 && S_ISDIR(st.st_mode))) {
		struct stall_error *err = find_ring(pid, path, &found);
		if (err)
			return err;
	}
	struct stall_error *err = stall_ring_open(found ? found : path, writable, &ring);
	// A file that was found by name may have been replaced meanwhile.
	if (!err)
		err = check_process(ring, pid, found);
	if (err)
		return err;
	*ret = no_cleanup_ptr(ring);
	return NULL;
}

bool stall_ring_is_left(const struct stall_ring *ring, pid_t pid)
{
	_cleanup_(identity_deinit) struct identity identity = {
		.target = {.pidfd = -1, .procfd = -1},
	};
	_cleanup_error_ struct stall_error *err = identity_init(&identity, pid);

	// A process that cannot be read has ended, which others report.
	return !err && !is_of(stall_ring_header(ring), &identity);
}

bool stall_ring_is_live(const struct stall_ring_header *header, pid_t pid)
{
	_cleanup_(identity_deinit) struct identity identity = {
		.target = {.pidfd = -1, .procfd = -1},
	};
	_cleanup_error_ struct stall_error *err = identity_init(&identity, pid);

	// Without a start time a later process with that pid cannot be distinguished from it.
	return !err && identity.state != 'Z' && identity.state != 'X' && header->start_time &&
	       is_of(header, &identity);
}

bool stall_ring_identify(pid_t pid, pid_t *ret_ns_pid, uint64_t *ret_start_time)
{
	_cleanup_(identity_deinit) struct identity identity = {
		.target = {.pidfd = -1, .procfd = -1},
	};
	_cleanup_error_ struct stall_error *err = identity_init(&identity, pid);

	if (err)
		return false;
	*ret_ns_pid = identity.ns_pid;
	*ret_start_time = identity.target.start_time;
	return true;
}
