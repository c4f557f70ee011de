// SPDX-License-Identifier: Apache-2.0
#include "proc/module_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "proc/path_open.h"
#include "proc/read_child.h"

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

// btrfs and overlayfs report another st_dev than /proc/PID/maps does for the same file.
static bool is_mapped_file(const struct stall_path_status *status,
			   const struct stall_module *module)
{
	return status->ino == module->ino &&
	       (status->dev == module->dev || status->filesystem == BTRFS_SUPER_MAGIC ||
		status->filesystem == OVERLAYFS_SUPER_MAGIC);
}

static struct stall_path path_of(const struct stall_target *target,
				 const struct stall_module *module, int folder, const char *name)
{
	return (struct stall_path){target, folder, name, module->dev};
}

// Takes the error over.
static struct stall_error *refuse(struct stall_module *module, struct stall_error *why)
{
	struct stall_error *err = why->errnum == EINVAL
					  ? set_error(module, "not a regular file", 0)
					  : set_error(module, why->message, why->errnum);

	stall_error_destroy(why);
	return err;
}

struct stall_error *stall_module_settle_path(const struct stall_target *target,
					     struct stall_module *module)
{
	char *literal;

	if (!module->deleted)
		return NULL;
	if (asprintf(&literal, "%s (deleted)", module->path) < 0)
		return &stall_enomem;
	struct stall_path path = path_of(target, module, STALL_PATH_IN_ROOT, literal);
	struct stall_path_status status;
	struct stall_error *err = stall_path_status(&path, 0, &status);
	if (err || !is_mapped_file(&status, module)) {
		stall_error_destroy(err);
		free(literal);
		return NULL;
	}
	free(module->path);
	module->path = literal;
	module->deleted = false;
	return NULL;
}

static const char replaced[] = "the mapped file was deleted or replaced";

// By its path, where that is the mapped file still. STALL_ERROR_AGAIN: it is another one.
static struct stall_error *open_mapped(const struct stall_target *target, int folder,
				       struct stall_module *module)
{
	struct stall_path path = path_of(target, module, folder, module->path);
	struct stall_path_status status;
	struct stall_error *err = stall_path_open(&path, STALL_PATH_READ, &module->fd, &status);

	module->local = !err && stall_path_is_local(&status);
	if (err || is_mapped_file(&status, module))
		return err;
	close(module->fd);
	module->fd = -1;
	return stall_error_create(STALL_ERROR_AGAIN, "%s", replaced);
}

struct stall_error *stall_module_open(const struct stall_target *target,
				      struct stall_module *module, uint64_t start, uint64_t end)
{
	char name[64];

	module->fd = -1;
	if (module->ino == 0)
		return open_vdso(target, module);
	struct stall_error *err = stall_module_settle_path(target, module);
	if (err)
		return err;
	snprintf(name, sizeof(name), "map_files/%" PRIx64 "-%" PRIx64, start, end);
	struct stall_path link = path_of(target, module, STALL_PATH_IN_PROC, name);
	struct stall_path_status status;
	err = stall_path_open(&link, STALL_PATH_READ, &module->fd, &status);
	module->local = !err && stall_path_is_local(&status);
	if (!err || err->code == STALL_ERROR_LATE || err->errnum == EINVAL)
		return err ? refuse(module, err) : NULL;
	// Following such a link takes CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN.
	bool is_refused = err->errnum == EPERM;
	stall_error_destroy(err);
	err = open_mapped(target, STALL_PATH_IN_ROOT, module);
	if (!err || err->code == STALL_ERROR_LATE)
		return err ? refuse(module, err) : NULL;
	if (!module->deleted && err->code != STALL_ERROR_AGAIN)
		return refuse(module, err);
	stall_error_destroy(err);
	return set_error(module,
			 is_refused ? "the mapped file was deleted or replaced: opening it takes "
				      "CAP_CHECKPOINT_RESTORE"
				    : replaced,
			 0);
}

struct stall_error *stall_module_open_path(const struct stall_target *target,
					   struct stall_module *module, uint64_t start,
					   uint64_t end)
{
	struct stall_error *why = open_mapped(NULL, AT_FDCWD, module);

	if (!why || why->code == STALL_ERROR_LATE)
		return why ? refuse(module, why) : NULL;
	if (target) {
		struct stall_error *err = stall_module_open(target, module, start, end);
		if (err || module->fd >= 0) {
			stall_error_destroy(why);
			return err;
		}
	}
	// A refusal to read the process says nothing about the file.
	if (!module->deleted && why->code != STALL_ERROR_AGAIN)
		return refuse(module, why);
	stall_error_destroy(why);
	return set_error(module, replaced, 0);
}

struct stall_error *stall_module_open_under(int folder, struct stall_module *module)
{
	const char *path = module->path;

	module->fd = -1;
	if (path[0] != '/' || strstr(path, "/../"))
		return set_error(module, NULL, EINVAL);
	struct stall_path under = {
		.folder = folder == -1 ? AT_FDCWD : folder,
		.name = folder == -1 ? path : path + strspn(path, "/"),
	};
	struct stall_error *err = stall_path_open(&under, STALL_PATH_READ, &module->fd, NULL);
	return err ? refuse(module, err) : NULL;
}
