// SPDX-License-Identifier: Apache-2.0
// Paths of files that a process (this one) waits for.
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "check.h"
#include "waits/wait_files.h"

static struct stall_target target;
static char folder[] = "/tmp/test-wait-files-XXXXXX";
static char path[64];

static struct stall_wait_key key_of(int fd)
{
	struct stat status;

	CHECK(fstat(fd, &status) == 0);
	return (struct stall_wait_key){
		.tgid = getpid(),
		.kind = STALL_WAIT_FSYNC,
		.id = status.st_ino,
		// As the kernel has it: not st_dev, which is split up differently.
		.id2 = ((uint64_t)major(status.st_dev) << 20 | minor(status.st_dev)) << 32 | 77,
	};
}

static struct stall_wait_file record_of(int fd)
{
	struct stall_wait_file file = {.key = key_of(fd), .fd = fd, .name_count = 2};

	strcpy(file.names[0], "ib_logfile0");
	strcpy(file.names[1], "data");
	return file;
}

static void check_path(const struct stall_wait_file *file, const char *expected, bool deleted)
{
	char *found = NULL;
	bool found_deleted = false;

	CHECK_OK(stall_wait_file_path(&target, file, &found, &found_deleted));
	CHECK_STRING(found, expected);
	CHECK_INT(found_deleted, deleted);
	free(found);
}

static void test_same_file(void)
{
	const struct stall_wait_key key = {.id = 5, .id2 = (UINT64_C(259) << 20 | 300) << 32 | 9};

	CHECK(stall_wait_file_is(&key, makedev(259, 300), 5));
	CHECK(!stall_wait_file_is(&key, makedev(259, 44), 5)); // the low 8 bits of the minor alone
	CHECK(!stall_wait_file_is(&key, makedev(259, 300), 6));
}

static void test_descriptor(void)
{
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	struct stall_wait_file file = record_of(fd);

	check_path(&file, path, false);
	// Where inode numbers differ, as on overlay filesystems, the name has to agree.
	file.key.id++;
	check_path(&file, path, false);
	strcpy(file.names[0], "other");
	check_path(&file, ".../data/other", false);
	file.key.id--;

	// The number serves for another file by now.
	int other = open("/dev/null", O_RDONLY | O_CLOEXEC);
	file.fd = other;
	check_path(&file, ".../data/other", false);
	file.fd = fd;

	CHECK(unlink(path) == 0);
	check_path(&file, path, true);
	close(fd);
	check_path(&file, ".../data/other", false);
	close(other);
}

// A name may end like that by itself.
static void test_named_deleted(void)
{
	char name[96];

	snprintf(name, sizeof(name), "%s (deleted)", path);
	int fd = open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	const struct stall_wait_file file = record_of(fd);

	check_path(&file, name, false);
	CHECK(unlink(name) == 0);
	check_path(&file, name, true);
	close(fd);
}

static void test_by_path(void)
{
	struct stall_wait_file file = {.fd = -1};
	char expected[128], cwd[64];

	strcpy(file.path, "/var/lib/mysql/t.ibd");
	check_path(&file, "/var/lib/mysql/t.ibd", false);
	CHECK(chdir(folder) == 0 && getcwd(cwd, sizeof(cwd)));
	strcpy(file.path, "./test/t.ibd");
	snprintf(expected, sizeof(expected), "%s/test/t.ibd", cwd);
	check_path(&file, expected, false);
	// A path that fills its field has no end there.
	memset(file.path, 'x', sizeof(file.path));
	char *found = NULL;
	bool deleted;
	CHECK_OK(stall_wait_file_path(&target, &file, &found, &deleted));
	CHECK_INT(strlen(found), strlen(cwd) + 1 + sizeof(file.path));
	free(found);
	CHECK(chdir("/") == 0);
}

static void test_absolute(void)
{
	char *found = NULL;

	CHECK_OK(stall_wait_file_absolute("/", "a", &found));
	CHECK_STRING(found, "/a");
	free(found);
	CHECK_OK(stall_wait_file_absolute("", "a", &found)); // where it stands is not known
	CHECK_STRING(found, "a");
	free(found);
}

static void test_join(void)
{
	struct stall_wait_file file = {.name_count = 1000};
	char *found = NULL;

	for (int i = 0; i < STALL_FILE_NAMES; i++)
		memset(file.names[i], 'a' + i, STALL_FILE_NAME);
	CHECK_OK(stall_wait_file_join(&file, &found));
	CHECK_INT(strlen(found), 3 + STALL_FILE_NAMES * STALL_FILE_NAME);
	CHECK(!strncmp(found, ".../hhh", 7));
	free(found);
}

static void test_search(void)
{
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	struct stall_wait_key key = key_of(fd);
	char *found = NULL;
	bool deleted = false;

	CHECK_OK(stall_wait_file_search(&target, &key, &found, &deleted));
	CHECK_STRING(found, path);
	free(found);
	CHECK(unlink(path) == 0);
	close(fd);
	CHECK_OK(stall_wait_file_search(&target, &key, &found, &deleted));
	CHECK(!found);
}

int main(void)
{
	CHECK(mkdtemp(folder) != NULL);
	snprintf(path, sizeof(path), "%s/ib_logfile0", folder);
	CHECK_OK(stall_target_init(&target, getpid()));
	test_same_file();
	test_descriptor();
	test_named_deleted();
	test_by_path();
	test_absolute();
	test_join();
	test_search();
	stall_target_deinit(&target);
	CHECK(rmdir(folder) == 0);
	return check_done();
}
