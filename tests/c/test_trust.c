// SPDX-License-Identifier: Apache-2.0
// Files that steer: owners, modes, links, folders that are swapped meanwhile, a disk of another user.
// What needs other owners is left out where this is not root.
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/posix_acl.h>
#include <linux/posix_acl_xattr.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "base/trust.h"
#include "check.h"

#define EVE 54321
#define US 54322
#define SWAPS 3000

static char folder[] = "/tmp/stallscope-trust-XXXXXX";

static const char *in_folder(const char *name)
{
	static char paths[4][256];
	static unsigned int next;
	char *path = paths[next++ % 4];

	snprintf(path, sizeof(paths[0]), "%s/%s", folder, name);
	return path;
}

static void make_file(const char *name, mode_t mode)
{
	int fd = open(in_folder(name), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	CHECK(fd >= 0 && write(fd, name, 1) == 1 && fchmod(fd, mode) == 0);
	close(fd);
}

static void make_folder(const char *name, mode_t mode)
{
	CHECK(mkdir(in_folder(name), 0700) == 0 && chmod(in_folder(name), mode) == 0);
}

static void give(const char *name, uid_t uid, gid_t gid)
{
	CHECK(lchown(in_folder(name), uid, gid) == 0);
}

// '+': opened. '-': not trusted, and the message has these words. Else the errno, as a letter: '?'.
static char try_at(const struct stall_trust *trust, int dirfd, const char *path, int flags,
		   const char *words)
{
	struct stat st;
	int fd = -1;
	struct stall_error *err = stall_trusted_open(trust, dirfd, folder, path, flags, &fd);
	char found = !err ? '+' : stall_is_distrust(err) ? '-' : '?';

	if (!err)
		CHECK(fstat(fd, &st) == 0 && fcntl(fd, F_GETFD) == FD_CLOEXEC);
	if (found == '-' && words && !strstr(err->message, words)) {
		fprintf(stderr, "%s: not in: %s\n", words, err->message);
		found = '!';
	}
	if (fd >= 0)
		close(fd);
	stall_error_destroy(err);
	return found;
}

static char try(const struct stall_trust *trust, const char *name, const char *words)
{
	return try_at(trust, AT_FDCWD, in_folder(name), O_RDONLY, words);
}

static void test_modes(const struct stall_trust *trust)
{
	static const struct {
		mode_t folder, file;
		char found;
		const char *words;
	} rows[] = {
		{0755, 0644, '+', NULL},
		{0700, 0600, '+', NULL},
		{0755, 0646, '-', "file can be written to by others (mode 0646): chmod go-w"},
		{0755, 0666, '-', "file can be written to by others (mode 0666): chmod go-w"},
		{0757, 0644, '-', "row can be written to by others (mode 0757): chmod go-w"},
		{0777, 0644, '-', "row can be written to by others"},
		{01777, 0644, '+', NULL}, // as /tmp
		{01777, 0666, '-', "file can be written to"},
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		make_folder("row", rows[i].folder);
		make_file("row/file", rows[i].file);
		CHECK_INT(try(trust, "row/file", rows[i].words), rows[i].found);
		CHECK(unlink(in_folder("row/file")) == 0 && rmdir(in_folder("row")) == 0);
	}
}

// Where another group than root's and the user's own may write.
static void test_groups(const struct stall_trust *trust)
{
	struct stall_trust private = *trust;

	make_file("shared", 0664);
	give("shared", 0, EVE);
	CHECK_INT(try(trust, "shared", "by group 54321 (mode 0664): chmod g-w"), '-');
	private.group = EVE;
	CHECK_INT(try(&private, "shared", NULL), '+');
	give("shared", 0, 0);
	CHECK_INT(try(trust, "shared", NULL), '+');
	make_folder("team", 02775);
	make_file("team/file", 0644);
	give("team", 0, EVE);
	CHECK_INT(try(trust, "team/file", "team can be written to by group 54321"), '-');
}

// An access list gives a right to write that the group's bits only limit.
static void test_access_list(const struct stall_trust *trust)
{
	const struct {
		struct posix_acl_xattr_header header;
		struct posix_acl_xattr_entry entries[5];
	} list = {
		{POSIX_ACL_XATTR_VERSION},
		{{ACL_USER_OBJ, 6, ACL_UNDEFINED_ID},
		 {ACL_USER, 6, EVE},
		 {ACL_GROUP_OBJ, 4, ACL_UNDEFINED_ID},
		 {ACL_MASK, 6, ACL_UNDEFINED_ID},
		 {ACL_OTHER, 4, ACL_UNDEFINED_ID}},
	};

	make_file("listed", 0644);
	if (setxattr(in_folder("listed"), "system.posix_acl_access", &list, sizeof(list), 0) < 0) {
		CHECK(errno == EOPNOTSUPP);
		return;
	}
	CHECK_INT(try(trust, "listed", "can be written to by group 0 (mode 0664)"), '-');
}

static void test_owners(const struct stall_trust *root)
{
	struct stall_trust us = *root;

	stall_trust_add(&us, US);
	make_folder("eve", 0755);
	make_file("eve/file", 0644);
	give("eve", EVE, EVE);
	CHECK_INT(try(root, "eve/file", "eve belongs to user 54321"), '-');
	give("eve", US, US);
	give("eve/file", EVE, EVE);
	CHECK_INT(try(root, "eve/file", "eve belongs to user 54322"), '-');
	CHECK_INT(try(&us, "eve/file", "eve/file belongs to user 54321"), '-');
	give("eve/file", US, US);
	CHECK_INT(try(&us, "eve/file", NULL), '+');
	CHECK_INT(try_at(root, AT_FDCWD, in_folder("eve"), O_PATH | O_DIRECTORY, "eve belongs"),
		  '-');
	CHECK_INT(try_at(&us, AT_FDCWD, in_folder("eve"), O_PATH | O_DIRECTORY, NULL), '+');
	// Below a sticky folder anybody has files: an owner decides.
	make_folder("sticky", 01777);
	make_file("sticky/file", 0644);
	CHECK_INT(try(root, "sticky/file", NULL), '+');
	give("sticky/file", EVE, EVE);
	CHECK_INT(try(root, "sticky/file", "file belongs to user 54321"), '-');
	// A sticky folder's owner may remove what others have put there.
	give("sticky", EVE, EVE);
	give("sticky/file", 0, 0);
	CHECK_INT(try(root, "sticky/file", "sticky belongs to user 54321"), '-');
}

static void link_to(const char *target, const char *name)
{
	CHECK(symlink(target, in_folder(name)) == 0);
}

static void test_links(const struct stall_trust *trust)
{
	char up[300];

	make_folder("good", 0755);
	make_file("good/file", 0644);
	make_folder("bad", 0777);
	make_file("bad/file", 0644);
	link_to("good/file", "to-good");
	link_to("bad/file", "to-bad");
	link_to(in_folder("bad"), "to-bad-folder");
	link_to("../good/file", "bad/to-good");
	link_to("to-good", "to-link");
	link_to("round", "round");
	link_to("missing", "to-missing");
	CHECK_INT(try(trust, "to-good", NULL), '+');
	CHECK_INT(try(trust, "to-link", NULL), '+');
	// What a link leads to, and where it is.
	CHECK_INT(try(trust, "to-bad", "bad can be written"), '-');
	CHECK_INT(try(trust, "to-bad-folder/file", "bad can be written"), '-');
	CHECK_INT(try(trust, "bad/to-good", "bad can be written"), '-');
	CHECK_INT(try(trust, "good/../bad/file", "bad can be written"), '-');
	CHECK_INT(try(trust, "bad/../good/file", "bad can be written"), '-');
	CHECK_INT(try(trust, "good/./..//good/file", NULL), '+');
	CHECK_INT(try(trust, "round", NULL), '?');
	CHECK_INT(try(trust, "to-missing", NULL), '?');
	CHECK_INT(try(trust, "missing", NULL), '?');
	CHECK_INT(try(trust, "good/file/more", NULL), '?');
	CHECK_INT(try_at(trust, AT_FDCWD, in_folder("good/file"), O_PATH | O_DIRECTORY, NULL), '?');
	CHECK_INT(try_at(trust, AT_FDCWD, in_folder("good/"), O_RDONLY | O_DIRECTORY, NULL), '+');
	CHECK_INT(try_at(trust, AT_FDCWD, in_folder("good/.."), O_RDONLY | O_DIRECTORY, NULL), '+');
	CHECK_INT(try_at(trust, AT_FDCWD, "/", O_RDONLY | O_DIRECTORY, NULL), '+');
	CHECK_INT(try_at(trust, AT_FDCWD, "/dev/null", O_RDONLY, NULL), '+');
	// Without the folders above it, which the descriptor's owner has checked.
	int fd = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
	CHECK_INT(try_at(trust, fd, "good/file", O_RDONLY, NULL), '+');
	CHECK_INT(try_at(trust, fd, "to-good", O_RDONLY, NULL), '+');
	CHECK_INT(try_at(trust, fd, "to-bad", O_RDONLY, "bad can be written"), '-');
	close(fd);
	// A path of the process itself leads to what it is for.
	fd = open(in_folder("good/file"), O_RDONLY | O_CLOEXEC);
	snprintf(up, sizeof(up), "/proc/self/fd/%d", fd);
	CHECK_INT(try_at(trust, AT_FDCWD, up, O_RDONLY, NULL), '+');
	close(fd);
	fd = open(in_folder("bad"), O_PATH | O_CLOEXEC);
	snprintf(up, sizeof(up), "/proc/self/fd/%d/file", fd);
	CHECK_INT(try_at(trust, AT_FDCWD, up, O_RDONLY, "can be written"), '-');
	close(fd);
}

static void test_relative(const struct stall_trust *trust)
{
	char before[4096];

	CHECK(getcwd(before, sizeof(before)) && chdir(in_folder("good")) == 0);
	CHECK_INT(try_at(trust, AT_FDCWD, "file", O_RDONLY, NULL), '+');
	CHECK(chdir(in_folder("bad")) == 0);
	CHECK_INT(try_at(trust, AT_FDCWD, "file", O_RDONLY, "bad can be written"), '-');
	CHECK(chdir(before) == 0);
}

// A FIFO is not waited for.
static void test_fifo(const struct stall_trust *trust)
{
	CHECK(mkfifo(in_folder("fifo"), 0600) == 0);
	CHECK_INT(try(trust, "fifo", NULL), '+');
	CHECK(chmod(in_folder("fifo"), 0666) == 0);
	CHECK_INT(try(trust, "fifo", "can be written to"), '-');
}

static void test_everyone(void)
{
	struct stall_trust trust = {.everyone = true};

	CHECK_INT(try(&trust, "bad/file", NULL), '+');
	CHECK_INT(try(&trust, "to-bad", NULL), '+');
	CHECK_INT(try(&trust, "missing", NULL), '?');
}

// Root has more privileges than any user; what is named is checked too.
static void test_of_self(void)
{
	struct stall_trust own = stall_trust_own(), named = stall_trust_named();

	CHECK(own.owner_count == (geteuid() ? 2 : 1) && own.owners[0] == 0);
	CHECK(own.owners[own.owner_count - 1] == geteuid());
	CHECK(!own.everyone);
	if (geteuid() == 0)
		CHECK(!named.everyone && own.group == 0);
}

// In a child, with this text in place of /etc/group, as a user whose group has the user's number.
// Returns the group that counts as that user; (gid_t)-1: no mounts here.
static gid_t group_of_user(const char *text)
{
	int fd = open(in_folder("group"), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	gid_t *found = mmap(NULL, sizeof(*found), PROT_READ | PROT_WRITE,
			    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int status;

	CHECK(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
	close(fd);
	*found = (gid_t)-1;
	pid_t pid = fork();
	if (pid == 0) {
		if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
		    mount(in_folder("group"), "/etc/group", NULL, MS_BIND, NULL) ||
		    setgroups(0, NULL) || setresgid(EVE, EVE, EVE) || setresuid(EVE, EVE, EVE))
			_exit(1);
		*found = stall_trust_own().group;
		_exit(!stall_trust_named().everyone);
	}
	CHECK(waitpid(pid, &status, 0) == pid && (status == 0 || *found == (gid_t)-1));
	gid_t group = *found;
	munmap(found, sizeof(*found));
	return group;
}

static void test_group_of_user(void)
{
	static const struct {
		const char *text;
		gid_t group;
	} rows[] = {
		{"root:x:0:\neve:x:54321:\n", EVE},  {"root:x:0:\neve:x:54321:eve\n", EVE},
		{"root:x:0:\neve:x:54321:bob\n", 0}, {"root:x:0:\neve:x:54321:eve,bob\n", 0},
		{"root:x:0:\neve:x:54322:\n", 0},    {"", 0},
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		gid_t group = group_of_user(rows[i].text);

		if (group == (gid_t)-1) {
			printf("no mounts here\n");
			return;
		}
		CHECK_INT(group, rows[i].group);
	}
}

static void *swap(void *over)
{
	char one[256], other[256];

	snprintf(one, sizeof(one), "%s/swap", folder);
	snprintf(other, sizeof(other), "%s/other", folder);
	while (!atomic_load((atomic_bool *)over))
		syscall(SYS_renameat2, AT_FDCWD, one, AT_FDCWD, other, RENAME_EXCHANGE);
	return NULL;
}

// The file that is opened is the one that was checked, whatever the name meanwhile leads to.
static void test_swapped(const struct stall_trust *trust)
{
	unsigned int opened = 0, distrusted = 0;
	atomic_bool over = false;
	pthread_t thread;

	make_folder("swap", 0755);
	make_file("swap/file", 0644);
	make_folder("other", 0777);
	make_file("other/file", 0644);
	CHECK(truncate(in_folder("other/file"), 100) == 0);
	CHECK(pthread_create(&thread, NULL, swap, &over) == 0);
	// Until both have been seen often enough.
	while (opened < SWAPS || distrusted < SWAPS) {
		struct stat st = {};
		int fd = -1;
		struct stall_error *err = stall_trusted_open(trust, AT_FDCWD, NULL,
							     in_folder("swap/file"), O_RDONLY, &fd);

		if (!err && (fstat(fd, &st) < 0 || st.st_size != 1))
			CHECK(!"a file was opened that others can change");
		opened += !err;
		distrusted += stall_is_distrust(err);
		if (err && !stall_is_distrust(err))
			CHECK_OK(err);
		else
			stall_error_destroy(err);
		if (fd >= 0)
			close(fd);
	}
	atomic_store(&over, true);
	pthread_join(thread, NULL);
}

// Its server says that all is root's, or, as here, nothing at all: it is not asked.
static void test_disk_of_another_user(const struct stall_trust *trust)
{
	int fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);
	char options[200];

	make_folder("disk", 0755);
	snprintf(options, sizeof(options),
		 "fd=%d,rootmode=40755,user_id=%d,group_id=%d,allow_other", fd, EVE, EVE);
	if (fd < 0 || mount("user_id=0", in_folder("disk"), "fuse.user_id=0", MS_NOSUID | MS_NODEV,
			    options) < 0) {
		printf("no FUSE here: %m\n");
		if (fd >= 0)
			close(fd);
		return;
	}
	alarm(60);
	CHECK_INT(try(trust, "disk/file", "is on a FUSE file system of user 54321"), '-');
	alarm(0);
	CHECK(umount2(in_folder("disk"), MNT_DETACH) == 0);
	close(fd);
}

static void test_read_only(const struct stall_trust *trust)
{
	const char *path = in_folder("bad");

	if (mount(path, path, NULL, MS_BIND, NULL) < 0) {
		printf("no mounts here: %m\n");
		return;
	}
	CHECK(mount(NULL, path, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL) == 0);
	CHECK_INT(try(trust, "bad/file", NULL), '+');
	CHECK(umount2(path, MNT_DETACH) == 0);
	CHECK_INT(try(trust, "bad/file", "can be written to by others"), '-');
}

static void remove_all(void)
{
	pid_t pid = fork();

	if (pid == 0) {
		execlp("rm", "rm", "-r", folder, NULL);
		_exit(1);
	}
	waitpid(pid, NULL, 0);
}

int main(void)
{
	struct stall_trust trust = {};

	CHECK(mkdtemp(folder));
	stall_trust_add(&trust, 0);
	stall_trust_add(&trust, geteuid());
	test_modes(&trust);
	test_links(&trust);
	test_relative(&trust);
	test_fifo(&trust);
	test_everyone();
	test_of_self();
	test_swapped(&trust);
	if (geteuid() == 0) {
		test_groups(&trust);
		test_group_of_user();
		test_access_list(&trust);
		test_owners(&trust);
		test_disk_of_another_user(&trust);
		test_read_only(&trust);
	}
	remove_all();
	return check_done();
}
