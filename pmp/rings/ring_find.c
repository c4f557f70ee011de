// SPDX-License-Identifier: Apache-2.0
#include "rings/ring_find.h"

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
#include "base/trust.h"
#include "proc/path_open.h"
#include "proc/proc_file.h"
#include "proc/read_child.h"
#include "proc/target.h"
#include "snapshot/proc_thread.h"

#define MAX_FOLDERS 8
#define MAX_ENTRIES 65536 // of a folder that are checked
#define MAX_CANDIDATES 256
#define PIECE ((size_t)64 << 10)
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

static uint64_t read_start_stack(const struct stall_target *target)
{
	struct stall_proc_stat stat;

	return stall_proc_stat_read(target, target->reader, &stat) ? 0 : stat.start_stack;
}

static void read_boot_id(char *ret, size_t size)
{
	_cleanup_close_ int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, ret, size - 1);

	ret[n > 0 ? n : 0] = '\0';
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
	stall_proc_read(&identity->target, "status", text, sizeof(text));
	const char *field = stall_proc_field(text, "\nUid:");
	uid_t *uids = identity->uids;
	if (!field || sscanf(field, "%u %u %u %u", &uids[0], &uids[1], &uids[2], &uids[3]) != 4)
		memset(identity->uids, 0, sizeof(identity->uids));
	return NULL;
}

// Two pid namespaces may have the same pid. For a process that we may not read, only our own
// namespace is certain.
static bool is_other_namespace(const struct stall_ring_header *header,
			       const struct identity *identity)
{
	uint64_t its = stall_proc_pid_namespace(&identity->target);

	if (!header->pid_namespace)
		return false;
	if (its)
		return header->pid_namespace != its;
	return header->pid_namespace == stall_proc_pid_namespace(NULL) &&
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
				       const struct stall_ring *ring, struct stall_trust trust)
{
	for (size_t i = 0; i < 4; i++)
		stall_trust_add(&trust, identity->uids[i]);
	struct stall_error *err =
		stall_trust_check(&trust, stall_ring_fd(ring), stall_ring_path(ring));
	if (!err)
		return NULL;
	struct stall_error *named = stall_error_create(
		err->code,
		"a ring that others can change is not that of the process: %s; remove it",
		err->message);
	stall_error_destroy(err);
	return named;
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

static struct stall_error *try_file(struct search *search, int folder, const char *directory,
				    const char *name)
{
	const struct identity *identity = search->identity;
	_cleanup_(stall_ring_closep) struct stall_ring *ring = NULL;
	_cleanup_free_ char *path = NULL;

	if (asprintf(&path, "%s/%s", directory, name) < 0)
		return &stall_enomem;
	struct stall_error *err = stall_ring_open_at(folder, name, path, false, &ring);
	if (err && err->errnum == ENOENT) {
		stall_error_destroy(err);
		return NULL;
	}
	if (!err && identity)
		err = check_owner(identity, ring, stall_trust_own());
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

// Names begin with the pid, so that those of others need not be opened.
static struct stall_error *search_folder(struct search *search, int folder, const char *directory)
{
	_cleanup_free_ char *piece = malloc(PIECE);
	char prefix[16] = "";
	struct stall_folder_entry entry;
	struct stall_error *err = NULL;
	size_t seen = 0, size = 1;

	if (!piece)
		return &stall_enomem;
	if (search->identity && search->identity->ns_pid)
		snprintf(prefix, sizeof(prefix), "%d-", search->identity->ns_pid);
	while (!err && size && seen < MAX_ENTRIES) {
		size_t at = 0;

		err = stall_folder_next(folder, piece, PIECE, &size);
		while (!err && stall_folder_entry_next(piece, size, &at, &entry)) {
			seen++;
			if (strncmp(entry.name, prefix, strlen(prefix)) ||
			    !is_ring_name(entry.name))
				continue;
			if (search->candidates++ == MAX_CANDIDATES)
				return NULL;
			err = try_file(search, folder, directory, entry.name);
		}
	}
	if (err && err != &stall_enomem) { // it does not answer
		refuse(search, err);
		err = NULL;
	}
	return err;
}

static struct stall_error *search_path(struct search *search, const char *path, bool *ret_refused)
{
	const struct stall_target *target = search->identity ? &search->identity->target : NULL;
	struct stall_path where = {.folder = AT_FDCWD, .name = path};
	_cleanup_close_ int fd = -1, inner = -1;
	_cleanup_free_ char *inside = NULL;
	struct stall_error *err = stall_path_open(&where, STALL_PATH_FOLDER, &fd, NULL);

	if (err) {
		*ret_refused = err->errnum == EACCES || err->errnum == EPERM;
		if (err->code == STALL_ERROR_LATE)
			refuse(search, err);
		else
			stall_error_destroy(err);
		err = NULL;
	} else {
		err = search_folder(search, fd, path);
	}
	// A container's own folder, which the host may be allowed to read.
	if (err || !target || search->found)
		return err;
	where = (struct stall_path){target, STALL_PATH_IN_ROOT, path, 0};
	err = stall_path_open(&where, STALL_PATH_FOLDER, &inner, NULL);
	if (err) {
		stall_error_destroy(err);
		return NULL;
	}
	if (asprintf(&inside, "/proc/%d/root%s", target->pid, path) < 0)
		return &stall_enomem;
	return search_folder(search, inner, inside);
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
		.target = STALL_TARGET_NONE,
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
		.target = STALL_TARGET_NONE,
	};
	struct stall_error *err = identity_init(&identity, pid);

	if (!err && !is_of(stall_ring_header(ring), &identity))
		err = stall_error_create(STALL_ERROR_USAGE,
					 "%s: the ring of another process, not of %d",
					 stall_ring_path(ring), pid);
	if (!err)
		err = check_owner(&identity, ring,
				  is_found ? stall_trust_own() : stall_trust_named());
	return err;
}

static bool is_folder(const char *path)
{
	const struct stall_path named = {.folder = AT_FDCWD, .name = path};
	struct stall_path_status status;
	_cleanup_error_ struct stall_error *err = stall_path_status(&named, 0, &status);

	return !err && S_ISDIR(status.mode);
}

struct stall_error *stall_ring_open_process(pid_t pid, const char *path, bool writable,
					    struct stall_ring **ret)
{
	_cleanup_(stall_ring_closep) struct stall_ring *ring = NULL;
	_cleanup_free_ char *found = NULL;

	if (!path || is_folder(path)) {
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
		.target = STALL_TARGET_NONE,
	};
	_cleanup_error_ struct stall_error *err = identity_init(&identity, pid);

	// A process that cannot be read has ended, which others report.
	return !err && !is_of(stall_ring_header(ring), &identity);
}

bool stall_ring_is_live(const struct stall_ring_header *header, pid_t pid)
{
	_cleanup_(identity_deinit) struct identity identity = {
		.target = STALL_TARGET_NONE,
	};
	_cleanup_error_ struct stall_error *err = identity_init(&identity, pid);

	// Without a start time a later process with that pid cannot be distinguished from it.
	return !err && identity.state != 'Z' && identity.state != 'X' && header->start_time &&
	       is_of(header, &identity);
}

bool stall_ring_identify(pid_t pid, pid_t *ret_ns_pid, uint64_t *ret_start_time)
{
	_cleanup_(identity_deinit) struct identity identity = {
		.target = STALL_TARGET_NONE,
	};
	_cleanup_error_ struct stall_error *err = identity_init(&identity, pid);

	if (err)
		return false;
	*ret_ns_pid = identity.ns_pid;
	*ret_start_time = identity.target.start_time;
	return true;
}
