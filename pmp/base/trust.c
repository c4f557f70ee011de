// SPDX-License-Identifier: Apache-2.0
#include "base/trust.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/privileges.h"

#define MAX_LINKS 40 // of a path, as in the kernel
#define ROOT_GROUP 0

// useradd(8) gives each user a group of the same number, and pam_umask(8) then lets it write.
static bool is_alone_in_group(gid_t gid)
{
	_cleanup_fclose_ FILE *file = fopen("/etc/group", "re");
	struct group *group = NULL;

	if (!file || gid != getuid())
		return false;
	// Not getgrgid(3), for which a static program loads libraries.
	while ((group = fgetgrent(file)) && group->gr_gid != gid)
		;
	// It has the user's name, and lists the user or nobody.
	return group && (!group->gr_mem[0] ||
			 (!strcmp(group->gr_mem[0], group->gr_name) && !group->gr_mem[1]));
}

static bool has_privileges(void)
{
	return geteuid() == 0 || getuid() != geteuid() || getgid() != getegid() ||
	       getauxval(AT_SECURE) || stall_capabilities_read().permitted;
}

struct stall_trust stall_trust_own(void)
{
	struct stall_trust trust = {.group = ROOT_GROUP};

	stall_trust_add(&trust, 0);
	stall_trust_add(&trust, geteuid());
	if (!has_privileges() && is_alone_in_group(getgid()))
		trust.group = getgid();
	return trust;
}

struct stall_trust stall_trust_named(void)
{
	struct stall_trust trust = stall_trust_own();

	trust.everyone = !has_privileges();
	return trust;
}

static bool is_owner(const struct stall_trust *trust, uid_t uid)
{
	for (size_t i = 0; i < trust->owner_count; i++) {
		if (trust->owners[i] == uid)
			return true;
	}
	return false;
}

void stall_trust_add(struct stall_trust *trust, uid_t uid)
{
	if (!is_owner(trust, uid) && trust->owner_count < STALL_TRUST_OWNERS)
		trust->owners[trust->owner_count++] = uid;
}

bool stall_is_distrust(const struct stall_error *err)
{
	return err && err->code == STALL_ERROR_PERMISSION && !err->errnum;
}

// With an access list the group's bits are the most that any user of the list may do (acl(5)).
static bool has_access_list(int fd)
{
	char path[32];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	return getxattr(path, "system.posix_acl_access", NULL, 0) >= 0 ||
	       (errno != ENODATA && errno != EOPNOTSUPP);
}

// Kubernetes mounts its volumes read-only, with folders of mode 0777.
static bool is_read_only(int fd)
{
	struct statfs fs;

	return fstatfs(fd, &fs) == 0 && (fs.f_flags & ST_RDONLY);
}

// Of a line of mountinfo (proc_pid_mountinfo(5)): the user that mounted a FUSE file system, which a
// virtual machine's host does without one. The name of the mount point and that of the source, which
// the user has chosen, are skipped: blanks in them are escaped.
static bool is_fuse_of(const char *line, dev_t dev, uid_t *ret)
{
	const char *type = strstr(line, " - fuse"), *options = type ? type + 3 : NULL;
	unsigned int major_number, minor_number;

	if (!type || sscanf(line, "%*u %*u %u:%u", &major_number, &minor_number) != 2 ||
	    makedev(major_number, minor_number) != dev)
		return false;
	for (int i = 0; i < 2 && options; i++)
		options = strchr(options + 1, ' ');
	options = options ? strstr(options, "user_id=") : NULL;
	return options && sscanf(options, "user_id=%u", ret) == 1;
}

// The server of a FUSE file system, which any user may mount, chooses the owners that it reports.
static struct stall_error *check_file_system(const struct stall_trust *trust, dev_t dev,
					     const char *path)
{
	_cleanup_fclose_ FILE *mounts = NULL;
	_cleanup_free_ char *line = NULL;
	struct stall_error *err = NULL;
	size_t size = 0;
	uid_t uid;

	if (major(dev)) // a real device's
		return NULL;
	mounts = fopen("/proc/self/mountinfo", "re");
	while (!err && mounts && getline(&line, &size, mounts) >= 0) {
		if (is_fuse_of(line, dev, &uid) && !is_owner(trust, uid))
			err = stall_error_create(STALL_ERROR_PERMISSION,
						 "%s is on a FUSE file system of user %u: copy it "
						 "to a disk",
						 path, uid);
	}
	return err;
}

// A file system that does not answer is not asked where that can be avoided. A sandbox, and kernels
// before 4.11, have fstat(2) alone.
static struct stall_error *get_status(int fd, const char *path, struct stat *ret)
{
	const int flags = AT_EMPTY_PATH | AT_STATX_DONT_SYNC | AT_NO_AUTOMOUNT;
	struct statx status;

	if (statx(fd, "", flags, STATX_TYPE | STATX_MODE | STATX_UID | STATX_GID, &status) < 0)
		return fstat(fd, ret) < 0 ? stall_error_os(errno, "%s", path) : NULL;
	*ret = (struct stat){
		.st_dev = makedev(status.stx_dev_major, status.stx_dev_minor),
		.st_mode = status.stx_mode,
		.st_uid = status.stx_uid,
		.st_gid = status.stx_gid,
	};
	return NULL;
}

static struct stall_error *check_mode(const struct stall_trust *trust, int fd,
				      const struct stat *st, const char *path)
{
	bool is_sticky = S_ISDIR(st->st_mode) && (st->st_mode & S_ISVTX);
	mode_t others = st->st_mode & (S_IWGRP | S_IWOTH);

	// What is in a sticky folder can be replaced by its owner alone. Nobody writes to a link, and
	// what is written to a device is not what is read from it.
	if (!others || is_sticky || S_ISLNK(st->st_mode) || S_ISCHR(st->st_mode))
		return NULL;
	if (others == S_IWGRP && (st->st_gid == ROOT_GROUP || st->st_gid == trust->group) &&
	    !has_access_list(fd))
		return NULL;
	if (is_read_only(fd))
		return NULL;
	if (others == S_IWGRP)
		return stall_error_create(STALL_ERROR_PERMISSION,
					  "%s can be written to by group %u (mode %04o): chmod g-w",
					  path, st->st_gid, st->st_mode & 07777);
	return stall_error_create(STALL_ERROR_PERMISSION,
				  "%s can be written to by others (mode %04o): chmod go-w", path,
				  st->st_mode & 07777);
}

static struct stall_error *check(const struct stall_trust *trust, int fd, const char *path,
				 struct stat *ret)
{
	struct stall_error *err = get_status(fd, path, ret);

	if (err || trust->everyone)
		return err;
	if (!is_owner(trust, ret->st_uid))
		return stall_error_create(STALL_ERROR_PERMISSION,
					  "%s belongs to user %u, who could change it: chown it to "
					  "root, or use a copy of your own",
					  path, ret->st_uid);
	err = check_file_system(trust, ret->st_dev, path);
	return err ? err : check_mode(trust, fd, ret, path);
}

struct stall_error *stall_trust_check(const struct stall_trust *trust, int fd, const char *path)
{
	struct stat st;

	return check(trust, fd, path, &st);
}

struct walk {
	const struct stall_trust *trust;
	int fd;		     // the folder that was reached
	char at[PATH_MAX];   // its name
	char rest[PATH_MAX]; // what is to be walked from there
	int flags;
	unsigned int links;
	bool is_open; // with the flags
};

static void walk_deinit(struct walk *walk)
{
	stall_closep(&walk->fd);
}

static int join(const struct walk *walk, const char *name, char ret[PATH_MAX])
{
	return snprintf(ret, PATH_MAX, "%s%s%s", walk->at, strcmp(walk->at, "/") ? "/" : "", name);
}

// Takes the descriptor over.
static struct stall_error *reach(struct walk *walk, int fd, const char *name)
{
	char at[PATH_MAX];

	stall_closep(&walk->fd);
	walk->fd = fd;
	if (join(walk, name, at) >= (int)sizeof(at))
		return stall_error_os(ENAMETOOLONG, "%.200s", walk->at);
	memcpy(walk->at, at, sizeof(at));
	return stall_trust_check(walk->trust, fd, at);
}

static struct stall_error *go_to_root(struct walk *walk)
{
	int fd = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);

	if (fd < 0)
		return stall_error_os(errno, "/");
	walk->at[0] = '\0';
	return reach(walk, fd, ""); // "/"
}

// Links such as /proc/PID/root and /proc/self/fd/0 lead to what they are for, not to their text.
static bool is_magic(int link, const char *text)
{
	struct statfs fs;

	return fstatfs(link, &fs) == 0 && fs.f_type == PROC_SUPER_MAGIC &&
	       (text[0] == '/' || strchr(text, ':'));
}

static struct stall_error *follow(struct walk *walk, int link, const char *name, bool *ret_magic)
{
	char text[PATH_MAX], rest[PATH_MAX];
	ssize_t n = readlinkat(link, "", text, sizeof(text) - 1);

	if (n < 0 || ++walk->links > MAX_LINKS)
		return stall_error_os(n < 0 ? errno : ELOOP, "%.200s/%s", walk->at, name);
	text[n] = '\0';
	*ret_magic = is_magic(link, text);
	if (*ret_magic)
		return NULL;
	if (snprintf(rest, sizeof(rest), "%s/%s", text, walk->rest) >= (int)sizeof(rest))
		return stall_error_os(ENAMETOOLONG, "%.200s/%s", walk->at, name);
	memcpy(walk->rest, rest, sizeof(rest));
	return text[0] == '/' ? go_to_root(walk) : NULL;
}

// Not before the path is known to be no FIFO or device of somebody else.
static struct stall_error *open_last(struct walk *walk, const char *name, int no_follow)
{
	const int flags = walk->flags | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | no_follow;
	int fd = openat(walk->fd, name, flags);

	if (fd < 0)
		return stall_error_os(errno, "%.200s/%s", walk->at, name);
	walk->is_open = true;
	return reach(walk, fd, name);
}

static struct stall_error *step(struct walk *walk, const char *name)
{
	bool is_last = !walk->rest[0], is_magic = false;
	_cleanup_close_ int fd = openat(walk->fd, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	char path[PATH_MAX];
	struct stat st;

	if (fd < 0)
		return stall_error_os(errno, "%.200s/%s", walk->at, name);
	if (join(walk, name, path) >= (int)sizeof(path))
		return stall_error_os(ENAMETOOLONG, "%.200s", walk->at);
	struct stall_error *err = check(walk->trust, fd, path, &st);
	if (err)
		return err;
	if (S_ISLNK(st.st_mode)) {
		err = follow(walk, fd, name, &is_magic);
		if (err || !is_magic)
			return err;
	}
	if (is_last && !(walk->flags & O_PATH))
		return open_last(walk, name, is_magic ? 0 : O_NOFOLLOW);
	if (is_magic) {
		close(fd);
		fd = openat(walk->fd, name, O_PATH | O_CLOEXEC);
		if (fd < 0)
			return stall_error_os(errno, "%.200s/%s", walk->at, name);
	}
	int reached = fd;
	fd = -1;
	return reach(walk, reached, name);
}

static struct stall_error *walk_all(struct walk *walk)
{
	struct stall_error *err = NULL;

	while (!err && walk->rest[strspn(walk->rest, "/")]) {
		char name[NAME_MAX + 1];
		size_t skip = strspn(walk->rest, "/");
		size_t length = strcspn(walk->rest + skip, "/");
		size_t end = skip + length;

		if (length > NAME_MAX)
			return stall_error_os(ENAMETOOLONG, "%.200s", walk->rest);
		memcpy(name, walk->rest + skip, length);
		name[length] = '\0';
		end += strspn(walk->rest + end, "/");
		memmove(walk->rest, walk->rest + end, strlen(walk->rest + end) + 1);
		if (strcmp(name, "."))
			err = step(walk, name);
	}
	return err;
}

static struct stall_error *begin(struct walk *walk, int dirfd, const char *dir, const char *path)
{
	char here[PATH_MAX] = "";

	if (path[0] != '/' && dirfd != AT_FDCWD) {
		int fd = openat(dirfd, ".", O_PATH | O_DIRECTORY | O_CLOEXEC);

		if (fd < 0)
			return stall_error_os(errno, "%s", dir);
		snprintf(walk->at, sizeof(walk->at), "%s", dir);
		snprintf(walk->rest, sizeof(walk->rest), "%s", path);
		walk->fd = fd;
		return strlen(path) < sizeof(walk->rest) && strlen(dir) < sizeof(walk->at)
			       ? stall_trust_check(walk->trust, fd, dir)
			       : stall_error_os(ENAMETOOLONG, "%.200s", path);
	}
	if (path[0] != '/' && !getcwd(here, sizeof(here)))
		return stall_error_os(errno, "%.200s", path);
	if (snprintf(walk->rest, sizeof(walk->rest), "%s/%s", here, path) >=
	    (int)sizeof(walk->rest))
		return stall_error_os(ENAMETOOLONG, "%.200s", path);
	return go_to_root(walk);
}

static struct stall_error *finish(struct walk *walk, int *ret)
{
	int fd = walk->fd;

	// A path that ends in a folder's "/", "." or "..", or only names it.
	if (!walk->is_open && !(walk->flags & O_PATH))
		fd = openat(walk->fd, ".", walk->flags | O_CLOEXEC);
	else
		walk->fd = -1;
	if (fd < 0)
		return stall_error_os(errno, "%s", walk->at);
	*ret = fd;
	return NULL;
}

struct stall_error *stall_trusted_open(const struct stall_trust *trust, int dirfd, const char *dir,
				       const char *path, int flags, int *ret)
{
	_cleanup_(walk_deinit) struct walk walk = {.trust = trust, .fd = -1, .flags = flags};
	bool is_below = path[0] != '/' && dirfd != AT_FDCWD;
	struct stat st;

	struct stall_error *err = begin(&walk, dirfd, dir, path);
	if (!err)
		err = walk_all(&walk);
	if (!err && (flags & O_PATH) && (flags & O_DIRECTORY) &&
	    (fstat(walk.fd, &st) < 0 || !S_ISDIR(st.st_mode)))
		err = stall_error_os(ENOTDIR, "%s", path);
	if (!err)
		err = finish(&walk, ret);
	if (!stall_is_distrust(err))
		return err;
	struct stall_error *named =
		stall_error_create(err->code, "%s%s%s is not used: %s", is_below ? dir : "",
				   is_below ? "/" : "", path, err->message);
	stall_error_destroy(err);
	return named;
}
