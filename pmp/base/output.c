// SPDX-License-Identifier: Apache-2.0
#include "base/output.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zstd.h>

#include "base/array.h"
#include "base/child_process.h"
#include "base/cleanup.h"

// How long to wait for the disk, also where it delays earlier files.
#define PATIENCE_MS 5000
#define SHORT_PATIENCE_MS 200
#define MAX_WAITING 8
#define MAX_MESSAGE 1024

struct stall_output {
	char *path; // NULL: stdout
	char *directory;
	const char *name; // in path
	bool force;
	bool all_may_read;
	int dirfd;
	int fd;	    // of a file: in the child that writes it
	char *data; // of a file, until the commit
	size_t size, capacity;
	char temporary[64]; // name in the directory; "" while the file has none (O_TMPFILE)
	ZSTD_CCtx *zstd;
	char *compressed;
	size_t compressed_size;
};

static const char *shown(const struct stall_output *output)
{
	return output->path ? output->path : "standard output";
}

static struct stall_error *exists_error(const char *path)
{
	return stall_error_create(STALL_ERROR_OTHER,
				  "%s: file exists; choose another name or give --force-overwrite",
				  path);
}

// The error that prevents the name, if any.
static struct stall_error *check_existing(const struct stall_output *output)
{
	struct stat st;

	if (fstatat(output->dirfd, output->name, &st, AT_SYMLINK_NOFOLLOW) < 0) {
		if (errno == ENOENT)
			return NULL;
		return stall_error_os(errno, "%s", output->path);
	}
	if (!S_ISREG(st.st_mode))
		return stall_error_create(
			STALL_ERROR_OTHER,
			"%s: not a regular file; leave --output away to write to standard output",
			output->path);
	if (!output->force)
		return exists_error(output->path);
	return NULL;
}

static struct stall_error *temporary_name(struct stall_output *output)
{
	uint64_t random;

	if (getrandom(&random, sizeof(random), 0) != sizeof(random))
		return stall_error_os(errno, "getrandom");
	snprintf(output->temporary, sizeof(output->temporary), ".stallscope-%016llx.tmp",
		 (unsigned long long)random);
	return NULL;
}

static struct stall_error *open_temporary(struct stall_output *output)
{
	// A file without a name leaves nothing behind if this process is killed.
	output->fd = openat(output->dirfd, ".", O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
	if (output->fd < 0 &&
	    (errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL || errno == ENOENT)) {
		struct stall_error *err = temporary_name(output);
		if (err)
			return err;
		output->fd = openat(output->dirfd, output->temporary,
				    O_CREAT | O_EXCL | O_NOFOLLOW | O_WRONLY | O_CLOEXEC, 0600);
		if (output->fd < 0)
			output->temporary[0] = '\0';
	}
	if (output->fd < 0)
		return stall_error_os(errno, "%s: cannot create a file in its directory",
				      output->path);
	// The umask can only have removed bits.
	if (fchmod(output->fd, output->all_may_read ? 0644 : 0600) < 0)
		return stall_error_os(errno, "%s: cannot set its mode", output->path);
	return NULL;
}

static struct stall_error *set_path(struct stall_output *output, const char *path)
{
	output->path = strdup(path);
	if (!output->path)
		return &stall_enomem;
	const char *slash = strrchr(output->path, '/');
	output->name = slash ? slash + 1 : output->path;
	if (!*output->name)
		return stall_error_create(STALL_ERROR_USAGE, "%s: a file name is missing", path);
	if (!slash)
		output->directory = strdup(".");
	else if (slash == output->path)
		output->directory = strdup("/");
	else
		output->directory = strndup(output->path, (size_t)(slash - output->path));
	if (!output->directory)
		return &stall_enomem;
	return NULL;
}

// In a child: a folder on a disk that does not answer keeps who opens it.
static struct stall_error *open_folder(struct stall_output *output)
{
	output->dirfd = open(output->directory, O_DIRECTORY | O_PATH | O_CLOEXEC);
	if (output->dirfd < 0)
		return stall_error_os(errno, "%s: cannot open its directory", output->path);
	struct stall_error *err = check_existing(output);
	if (err)
		return err;
	// The commit finds out whether it can be written: a file system that is frozen, or waits
	// for its disk, blocks any process that creates a file there.
	if (faccessat(output->dirfd, ".", W_OK | X_OK, AT_EACCESS) < 0)
		return stall_error_os(errno, "%s: cannot create a file in its directory",
				      output->path);
	return NULL;
}

static struct stall_error *start_zstd(struct stall_output *output)
{
	output->zstd = ZSTD_createCCtx();
	output->compressed_size = ZSTD_CStreamOutSize();
	output->compressed = malloc(output->compressed_size);
	if (!output->zstd || !output->compressed)
		return &stall_enomem;
	ZSTD_CCtx_setParameter(output->zstd, ZSTD_c_checksumFlag, 1);
	return NULL;
}

static bool ends_with(const char *string, const char *suffix)
{
	size_t length = strlen(string), suffix_length = strlen(suffix);
	return length >= suffix_length && !strcmp(string + length - suffix_length, suffix);
}

struct stall_error *stall_output_create_fd(int fd, struct stall_output **ret)
{
	struct stall_output *output = calloc(1, sizeof(*output));

	if (!output)
		return &stall_enomem;
	output->dirfd = -1;
	output->fd = fd;
	*ret = output;
	return NULL;
}

struct stall_error *stall_output_create_null(struct stall_output **ret)
{
	return stall_output_create_fd(-1, ret);
}

void stall_output_let_all_read(struct stall_output *output)
{
	output->all_may_read = true;
}

void stall_output_destroy(struct stall_output *output)
{
	if (!output)
		return;
	if (output->dirfd >= 0)
		close(output->dirfd);
	ZSTD_freeCCtx(output->zstd);
	free(output->compressed);
	free(output->data);
	free(output->directory);
	free(output->path);
	free(output);
}

static struct stall_error *write_all(struct stall_output *output, const char *data, size_t size)
{
	if (output->fd < 0)
		return NULL;
	while (size) {
		ssize_t written = write(output->fd, data, size);
		if (written < 0 && errno == EINTR)
			continue;
		if (written < 0)
			return stall_error_os(errno, "%s: cannot write", shown(output));
		data += written;
		size -= (size_t)written;
	}
	return NULL;
}

static struct stall_error *keep(struct stall_output *output, const char *data, size_t size)
{
	if (!stall_array_reserve(&output->data, output->size, size, &output->capacity))
		return &stall_enomem;
	memcpy(output->data + output->size, data, size);
	output->size += size;
	return NULL;
}

static struct stall_error *put(struct stall_output *output, const char *data, size_t size)
{
	return output->path ? keep(output, data, size) : write_all(output, data, size);
}

static struct stall_error *compress(struct stall_output *output, const void *data, size_t size,
				    ZSTD_EndDirective mode)
{
	ZSTD_inBuffer in = {.src = data, .size = size};
	size_t left;

	do {
		ZSTD_outBuffer out = {.dst = output->compressed, .size = output->compressed_size};
		left = ZSTD_compressStream2(output->zstd, &out, &in, mode);
		if (ZSTD_isError(left))
			return stall_error_create(STALL_ERROR_OTHER, "%s: cannot compress: %s",
						  shown(output), ZSTD_getErrorName(left));
		struct stall_error *err = put(output, output->compressed, out.pos);
		if (err)
			return err;
	} while (mode == ZSTD_e_end ? left : in.pos < in.size);
	return NULL;
}

struct stall_error *stall_output_write(struct stall_output *output, const void *data, size_t size)
{
	if (output->zstd)
		return compress(output, data, size, ZSTD_e_continue);
	return put(output, data, size);
}

// Gives an O_TMPFILE file a name; linkat never replaces.
static int link_unnamed(struct stall_output *output, const char *name)
{
	char self[64];

	snprintf(self, sizeof(self), "/proc/self/fd/%d", output->fd);
	return linkat(AT_FDCWD, self, output->dirfd, name, AT_SYMLINK_FOLLOW);
}

static int rename_named(struct stall_output *output)
{
	if (!renameat2(output->dirfd, output->temporary, output->dirfd, output->name,
		       RENAME_NOREPLACE)) {
		output->temporary[0] = '\0';
		return 0;
	}
	// Not every file system has RENAME_NOREPLACE; destroy removes the other name.
	if (errno == EINVAL || errno == ENOSYS)
		return linkat(output->dirfd, output->temporary, output->dirfd, output->name, 0);
	return -1;
}

static struct stall_error *give_name(struct stall_output *output)
{
	if (!output->force) {
		int failed = output->temporary[0] ? rename_named(output)
						  : link_unnamed(output, output->name);
		if (failed && errno == EEXIST)
			return exists_error(output->path);
		if (failed)
			return stall_error_os(errno, "%s: cannot give the file its name",
					      output->path);
		return NULL;
	}
	struct stall_error *err = check_existing(output);
	if (err)
		return err;
	if (!output->temporary[0]) {
		err = temporary_name(output);
		if (err)
			return err;
		if (link_unnamed(output, output->temporary) < 0) {
			int errnum = errno;
			output->temporary[0] = '\0';
			return stall_error_os(errnum, "%s: cannot give the file a name",
					      output->path);
		}
	}
	if (renameat(output->dirfd, output->temporary, output->dirfd, output->name) < 0)
		return stall_error_os(errno, "%s: cannot give the file its name", output->path);
	output->temporary[0] = '\0';
	return NULL;
}

// The name is only safe once the directory is on disk too.
static struct stall_error *sync_folder(const struct stall_output *output)
{
	_cleanup_close_ int folder = openat(output->dirfd, ".", O_DIRECTORY | O_RDONLY | O_CLOEXEC);

	if (folder < 0 || (fsync(folder) < 0 && errno != EINVAL))
		return stall_error_os(errno, "%s: cannot write its directory to disk",
				      output->path);
	return NULL;
}

static struct stall_error *write_file(struct stall_output *output)
{
	struct stall_error *err = open_temporary(output);

	if (!err)
		err = write_all(output, output->data, output->size);
	if (!err && fsync(output->fd) < 0)
		err = stall_error_os(errno, "%s: cannot write to disk", output->path);
	if (!err)
		err = give_name(output);
	if (!err)
		err = sync_folder(output);
	if (output->temporary[0])
		unlinkat(output->dirfd, output->temporary, 0);
	return err;
}

typedef struct stall_error *(*work_function)(struct stall_output *output);

// Sends the message of an error, or an empty one with the folder.
static _Noreturn void child_main(struct stall_output *output, work_function work, int answer)
{
	const int fds[] = {answer, output->dirfd};
	char message[MAX_MESSAGE] = "";
	struct iovec part = {message, sizeof(message)};

	stall_child_set_signals();
	stall_child_keep_only(fds, output->dirfd < 0 ? 1 : 2);
	if (output->dirfd >= 0)
		output->dirfd = STALL_CHILD_FD + 1;
	struct stall_error *err = work(output);
	if (err)
		snprintf(message, sizeof(message), "%s", err->message);
	stall_send_descriptor(STALL_CHILD_FD, &part, 1, err ? -1 : output->dirfd, 0);
	_exit(0);
}

// Children that wait for a disk. Their files are complete once it answers.
static pid_t waiting[MAX_WAITING];

// Returns how many there are.
static size_t reap_waiting(void)
{
	size_t left = 0;

	for (size_t i = 0; i < MAX_WAITING; i++) {
		if (waiting[i] && waitpid(waiting[i], NULL, WNOHANG) != 0)
			waiting[i] = 0;
		left += waiting[i] != 0;
	}
	return left;
}

static void hand_over(pid_t pid)
{
	for (size_t i = 0; i < MAX_WAITING; i++) {
		if (waiting[i])
			continue;
		waiting[i] = pid;
		return;
	}
}

static bool comes_in_time(int socket, int timeout_ms)
{
	struct pollfd pollfd = {.fd = socket, .events = POLLIN};
	int ready;

	do {
		ready = poll(&pollfd, 1, timeout_ms);
	} while (ready < 0 && errno == EINTR);
	return ready > 0;
}

// Takes the folder that comes with an answer.
static struct stall_error *read_answer(struct stall_output *output, int socket)
{
	char message[MAX_MESSAGE];
	struct iovec part = {message, sizeof(message)};
	int folder;

	if (stall_receive_descriptor(socket, &part, 1, &folder) != (ssize_t)sizeof(message))
		return stall_error_create(STALL_ERROR_OTHER, "%s: the writing process was killed",
					  output->path);
	message[sizeof(message) - 1] = '\0';
	if (output->dirfd < 0)
		output->dirfd = folder;
	else
		stall_closep(&folder);
	return message[0] ? stall_error_create(STALL_ERROR_OTHER, "%s", message) : NULL;
}

// `late`: the error where the child gets no answer from the disk, with the time and its number.
static struct stall_error *by_child(struct stall_output *output, work_function work,
				    const char *late)
{
	size_t before = reap_waiting();
	int sockets[2];

	if (before == MAX_WAITING)
		return stall_error_create(
			STALL_ERROR_LATE,
			"%s is not written: %d files before it still wait for their disk",
			output->path, MAX_WAITING);
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) < 0)
		return stall_error_os(errno, "socketpair");
	_cleanup_close_ int answer = sockets[0];
	pid_t pid = fork();
	if (pid == 0)
		child_main(output, work, sockets[1]);
	int errnum = errno;
	close(sockets[1]);
	if (pid < 0)
		return stall_error_os(errnum, "%s: cannot fork the writing process", output->path);
	int timeout_ms = before ? SHORT_PATIENCE_MS : PATIENCE_MS;
	if (!comes_in_time(answer, timeout_ms)) {
		hand_over(pid);
		return stall_error_create(STALL_ERROR_LATE,
					  "%s %s: its file system has not answered for %d ms; "
					  "process %d still %s",
					  output->path, late, timeout_ms, pid,
					  output->dirfd < 0 ? "waits" : "writes it");
	}
	struct stall_error *err = read_answer(output, answer);
	stall_child_end(pid);
	return err;
}

static struct stall_error *open_by_child(struct stall_output *output)
{
	return by_child(output, open_folder, "cannot be written");
}

struct stall_error *stall_output_create(const char *path, bool force, struct stall_output **ret)
{
	_cleanup_(stall_output_destroyp) struct stall_output *output = NULL;

	if (!path)
		return stall_output_create_fd(STDOUT_FILENO, ret);
	struct stall_error *err = stall_output_create_null(&output);
	if (err)
		return err;
	output->force = force;
	err = set_path(output, path);
	if (!err)
		err = open_by_child(output);
	if (!err && ends_with(path, ".zst"))
		err = start_zstd(output);
	if (err)
		return err;
	*ret = no_cleanup_ptr(output);
	return NULL;
}

struct stall_error *stall_output_commit(struct stall_output *output)
{
	if (output->zstd) {
		struct stall_error *err = compress(output, NULL, 0, ZSTD_e_end);
		if (err)
			return err;
	}
	return output->path ? by_child(output, write_file, "is not written yet") : NULL;
}
