// SPDX-License-Identifier: Apache-2.0
#include "snapshot/module_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <linux/openat2.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>

#include "base/cleanup.h"
#include "snapshot/read_child.h"

#define MAX_VDSO (256 * 1024)

static struct stall_error *set_error(struct stall_module *module, const char *what, int errnum)
{
	char buf[128];

	free(module->error);
	if (errnum)
		what = strerror_r(errnum, buf, sizeof(buf));
	module->error = strdup(what);
	return module->error ? NULL : &stall_enomem;
}

// The vdso has no file. It is the same for all processes of one kind, but a 32-bit one differs and
// time namespaces move its data page, so it is read from the target itself.
static struct stall_error *open_vdso(const struct stall_target *target, struct stall_module *module)
{
	size_t size = module->end - module->start;

	if (size > MAX_VDSO)
		return set_error(module, "larger than any vdso", 0);
	_cleanup_free_ char *image = malloc(size);
	if (!image)
		return &stall_enomem;
	if (stall_read_child_range(target, module->start, image, size) != size)
		return set_error(module, "cannot read it from the process", 0);
	_cleanup_close_ int fd = memfd_create("vdso", MFD_CLOEXEC);
	if (fd < 0)
		return set_error(module, NULL, errno);
	if (write(fd, image, size) != (ssize_t)size)
		return set_error(module, "cannot keep a copy of it", 0);
	module->fd = fd;
	fd = -1;
	return NULL;
}

// O_PATH touches no device and waits for no FIFO: its type is checked before it is opened.
static int open_regular(int path_fd, const char **ret_why)
{
	char path[32];
	struct stat st;

	if (fstat(path_fd, &st) < 0)
		return -1;
	if (!S_ISREG(st.st_mode)) {
		*ret_why = "not a regular file";
		errno = EINVAL;
		return -1;
	}
	snprintf(path, sizeof(path), "/proc/self/fd/%d", path_fd);
	return open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
}

// btrfs and overlayfs report another st_dev than /proc/PID/maps does for the same file.
static bool has_private_st_dev(int fd)
{
	struct statfs fs;

	return fstatfs(fd, &fs) == 0 &&
	       (fs.f_type == BTRFS_SUPER_MAGIC || fs.f_type == OVERLAYFS_SUPER_MAGIC);
}

static bool is_mapped_file(int fd, const struct stall_module *module)
{
	struct stat st;

	return fstat(fd, &st) == 0 && st.st_ino == module->ino &&
	       (st.st_dev == module->dev || has_private_st_dev(fd));
}

int stall_open_in_root(const struct stall_target *target, const char *path)
{
	_cleanup_close_ int root = openat(target->procfd, "root", O_PATH | O_DIRECTORY | O_CLOEXEC);
	struct open_how how = {.flags = O_PATH | O_CLOEXEC, .resolve = RESOLVE_IN_ROOT};

	if (root < 0)
		return -1;
	int fd = syscall(SYS_openat2, root, path, &how, sizeof(how));
	if (fd >= 0 || (errno != ENOSYS && errno != EPERM))
		return fd;
	while (*path == '/')
		path++;
	return openat(root, path, O_PATH | O_CLOEXEC);
}

static int open_map_file(const struct stall_target *target, uint64_t start, uint64_t end)
{
	char path[64];

	snprintf(path, sizeof(path), "map_files/%" PRIx64 "-%" PRIx64, start, end);
	return stall_read_child_link(target, path);
}

struct stall_error *stall_module_settle_path(const struct stall_target *target,
					     struct stall_module *module)
{
	char *literal;

	if (!module->deleted)
		return NULL;
	if (asprintf(&literal, "%s (deleted)", module->path) < 0)
		return &stall_enomem;
	_cleanup_close_ int fd = stall_open_in_root(target, literal);
	if (fd < 0 || !is_mapped_file(fd, module)) {
		free(literal);
		return NULL;
	}
	free(module->path);
	module->path = literal;
	module->deleted = false;
	return NULL;
}

struct stall_error *stall_module_open(const struct stall_target *target,
				      struct stall_module *module, uint64_t start, uint64_t end)
{
	const char *why = NULL;

	module->fd = -1;
	if (module->ino == 0)
		return open_vdso(target, module);
	struct stall_error *err = stall_module_settle_path(target, module);
	if (err)
		return err;
	// Following a link of map_files takes CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN.
	_cleanup_close_ int fd = open_map_file(target, start, end);
	int errnum = errno;
	if (fd < 0) {
		fd = stall_open_in_root(target, module->path);
		if (fd < 0 || !is_mapped_file(fd, module)) {
			if (module->deleted || fd >= 0)
				return set_error(
					module,
					errnum == EPERM
						? "the mapped file was deleted or replaced: "
						  "opening it takes CAP_CHECKPOINT_RESTORE"
						: "the mapped file was deleted or replaced",
					0);
			return set_error(module, NULL, errno);
		}
	}
	module->fd = open_regular(fd, &why);
	return module->fd < 0 ? set_error(module, why, why ? 0 : errno) : NULL;
}

struct stall_error *stall_module_open_path(const struct stall_target *target,
					   struct stall_module *module, uint64_t start,
					   uint64_t end)
{
	const char *why = NULL;
	_cleanup_close_ int fd = open(module->path, O_PATH | O_CLOEXEC);
	int errnum = errno;

	module->fd = -1;
	if (fd >= 0 && is_mapped_file(fd, module)) {
		module->fd = open_regular(fd, &why);
		return module->fd < 0 ? set_error(module, why, why ? 0 : errno) : NULL;
	}
	if (target) {
		struct stall_error *err = stall_module_open(target, module, start, end);
		if (err || module->fd >= 0)
			return err;
	}
	// A refusal to read the process is no property of the file.
	return set_error(module,
			 fd >= 0 || module->deleted ? "the mapped file was deleted or replaced"
						    : NULL,
			 fd >= 0 || module->deleted ? 0 : errnum);
}

struct stall_error *stall_module_open_under(int dirfd, struct stall_module *module)
{
	const char *path = module->path, *why = NULL;

	module->fd = -1;
	if (path[0] != '/' || strstr(path, "/../"))
		return set_error(module, NULL, EINVAL);
	_cleanup_close_ int fd =
		dirfd < 0 ? open(path, O_PATH | O_CLOEXEC)
			  : openat(dirfd, path + strspn(path, "/"), O_PATH | O_CLOEXEC);
	if (fd < 0)
		return set_error(module, NULL, errno);
	module->fd = open_regular(fd, &why);
	return module->fd < 0 ? set_error(module, why, why ? 0 : errno) : NULL;
}
