// SPDX-License-Identifier: Apache-2.0
// Output files: whole or absent, 0600, never in place of another. Everything is tried twice: with
// O_TMPFILE, and as on a file system that has none. Full disks: tests/root/test_bad_input.py.
#include "base/output.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zstd.h>

#include "check.h"
#include "refused_call.h"

static char directory[] = "/tmp/stallscope-test-XXXXXX";

static char *path_of(const char *name)
{
	static char path[512];

	snprintf(path, sizeof(path), "%s/%s", directory, name);
	return path;
}

static int count_entries(void)
{
	DIR *dir = opendir(directory);
	int count = 0;

	for (struct dirent *entry; (entry = readdir(dir));)
		count += strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..");
	closedir(dir);
	return count;
}

static size_t read_back(const char *path, char *text, size_t size)
{
	int fd = open(path, O_RDONLY);
	ssize_t got = fd < 0 ? 0 : read(fd, text, size - 1);

	if (fd >= 0)
		close(fd);
	text[got] = '\0';
	return got;
}

static void put(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0644);

	CHECK_INT(write(fd, text, strlen(text)), strlen(text));
	close(fd);
}

// Checks that it failed, with a message that holds `text`.
static void check_refused(struct stall_error *err, const char *text)
{
	CHECK(err != NULL);
	if (!err)
		return;
	CHECK(strstr(err->message, text) != NULL);
	CHECK(!strchr(err->message, '\n'));
	stall_error_destroy(err);
}

static void test_whole(void)
{
	char *path = path_of("whole");
	struct stall_output *output;
	char text[64];
	struct stat st;

	umask(0);
	CHECK_OK(stall_output_create(path, false, &output));
	CHECK_OK(stall_output_write(output, "one ", 4));
	CHECK_OK(stall_output_write(output, "two", 3));
	CHECK_INT(access(path, F_OK), -1);
	CHECK_OK(stall_output_commit(output));
	stall_output_destroy(output);
	CHECK_INT(stat(path, &st), 0);
	CHECK_INT(st.st_mode, S_IFREG | 0600);
	CHECK_INT(st.st_nlink, 1);
	read_back(path, text, sizeof(text));
	CHECK_STRING(text, "one two");
	CHECK_INT(count_entries(), 1);
	unlink(path);
}

static void test_abandoned(void)
{
	struct stall_output *output;

	CHECK_OK(stall_output_create(path_of("abandoned"), false, &output));
	CHECK_OK(stall_output_write(output, "half", 4));
	stall_output_destroy(output);
	CHECK_INT(count_entries(), 0);
}

static void test_no_overwrite(void)
{
	char *path = path_of("taken");
	struct stall_output *output;
	char text[64];

	put(path, "first");
	check_refused(stall_output_create(path, false, &output), "exists");
	unlink(path);

	// It comes into being while the capture is taken.
	CHECK_OK(stall_output_create(path, false, &output));
	CHECK_OK(stall_output_write(output, "second", 6));
	put(path, "first");
	check_refused(stall_output_commit(output), "exists");
	stall_output_destroy(output);
	read_back(path, text, sizeof(text));
	CHECK_STRING(text, "first");
	CHECK_INT(count_entries(), 1);

	CHECK_OK(stall_output_create(path, true, &output));
	CHECK_OK(stall_output_write(output, "third", 5));
	read_back(path, text, sizeof(text));
	CHECK_STRING(text, "first");
	CHECK_OK(stall_output_commit(output));
	stall_output_destroy(output);
	read_back(path, text, sizeof(text));
	CHECK_STRING(text, "third");
	CHECK_INT(count_entries(), 1);
	unlink(path);
}

static void test_not_a_file(void)
{
	struct stall_output *output;
	char *path = path_of("odd");

	CHECK_INT(mkfifo(path, 0600), 0);
	check_refused(stall_output_create(path, true, &output), "not a regular file");
	unlink(path);
	CHECK_INT(mkdir(path, 0700), 0);
	check_refused(stall_output_create(path, true, &output), "not a regular file");
	rmdir(path);
	CHECK_INT(symlink("/etc/passwd", path), 0);
	check_refused(stall_output_create(path, true, &output), "not a regular file");
	unlink(path);
	check_refused(stall_output_create(path_of("none/file"), false, &output),
		      "No such file or directory");
	check_refused(stall_output_create(path_of(""), false, &output), "name is missing");
	check_refused(stall_output_create("/dev/null", true, &output), "not a regular file");
	CHECK_INT(count_entries(), 0);
}

static void test_zstd(void)
{
	char *path = path_of("packed.zst"), *text = malloc(1 << 20), *packed = malloc(1 << 20);
	char *unpacked = malloc(1 << 20);
	struct stall_output *output;

	for (int i = 0; i < 1 << 20; i++)
		text[i] = 'a' + i * 7 % 26;
	CHECK_OK(stall_output_create(path, false, &output));
	for (int i = 0; i < 16; i++)
		CHECK_OK(stall_output_write(output, text + (i << 16), 1 << 16));
	CHECK_OK(stall_output_commit(output));
	stall_output_destroy(output);
	size_t size = read_back(path, packed, 1 << 20);
	CHECK(size > 4 && size < 1 << 19);
	CHECK(!memcmp(packed, "\x28\xb5\x2f\xfd", 4));
	CHECK_INT(ZSTD_findFrameCompressedSize(packed, size), size);
	CHECK_INT(ZSTD_decompress(unpacked, 1 << 20, packed, size), 1 << 20);
	CHECK(!memcmp(text, unpacked, 1 << 20));
	unlink(path);
	free(text);
	free(packed);
	free(unpacked);
}

// Nothing is there after a kill.
static void test_killed(void)
{
	int pipe_fds[2];
	char byte;

	CHECK_INT(pipe(pipe_fds), 0);
	pid_t pid = fork();
	if (pid == 0) {
		struct stall_output *output;
		if (stall_output_create(path_of("killed"), false, &output) ||
		    stall_output_write(output, "half", 4) || write(pipe_fds[1], "x", 1) != 1)
			_exit(1);
		for (;;)
			pause();
	}
	CHECK_INT(read(pipe_fds[0], &byte, 1), 1);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	close(pipe_fds[0]);
	close(pipe_fds[1]);
	CHECK_INT(access(path_of("killed"), F_OK), -1);
	CHECK_INT(count_entries(), 0);
}

static void test_streams(void)
{
	int pipe_fds[2];
	struct stall_output *output;
	char text[16];

	CHECK_INT(pipe(pipe_fds), 0);
	CHECK_OK(stall_output_create_fd(pipe_fds[1], &output));
	CHECK_OK(stall_output_write(output, "text", 4));
	CHECK_OK(stall_output_commit(output));
	CHECK_INT(read(pipe_fds[0], text, sizeof(text)), 4);
	// The reader goes away.
	close(pipe_fds[0]);
	check_refused(stall_output_write(output, "text", 4), "Broken pipe");
	stall_output_destroy(output);
	CHECK_INT(close(pipe_fds[1]), 0);
	CHECK_OK(stall_output_create_null(&output));
	CHECK_OK(stall_output_write(output, "text", 4));
	CHECK_OK(stall_output_commit(output));
	stall_output_destroy(output);
}

// As on a file system that does not know it.
static void refuse_tmpfile(void)
{
	CHECK(refuse_call(SYS_openat, EOPNOTSUPP, 2, BPF_JSET, O_TMPFILE & ~O_DIRECTORY));
	CHECK_INT(open(directory, O_TMPFILE | O_WRONLY, 0600), -1);
}

int main(void)
{
	signal(SIGPIPE, SIG_IGN);
	if (!mkdtemp(directory)) {
		perror(directory);
		return 1;
	}
	for (int round = 0; round < 2; round++) {
		if (round)
			refuse_tmpfile();
		test_whole();
		test_abandoned();
		test_no_overwrite();
		test_not_a_file();
		test_zstd();
		test_killed();
		test_streams();
	}
	CHECK_INT(rmdir(directory), 0);
	return check_done();
}
