// SPDX-License-Identifier: Apache-2.0
#include "ebpf/denylist.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/cleanup.h"

const struct stall_denied_kernel stall_denylist[] = {
	{
		.use = STALL_DENY_TASK_STACK,
		.first = {5, 9, 0},
		.fixed = {{5, 10, 30}, {5, 11, 14}, {5, 12, 0}},
		.what = "bpf_get_task_stack uses the stack of a thread that is ending after it was "
			"freed, and the kernel oopses",
		.reference = "Linux commit 06ab134ce8ec, \"bpf: Refcount task stack in "
			     "bpf_get_task_stack\"",
	},
};
const unsigned int stall_denylist_count = sizeof(stall_denylist) / sizeof(stall_denylist[0]);

static int compare(const struct stall_kernel_version *a, const struct stall_kernel_version *b)
{
	if (a->major != b->major)
		return a->major < b->major ? -1 : 1;
	if (a->minor != b->minor)
		return a->minor < b->minor ? -1 : 1;
	return (a->patch > b->patch) - (a->patch < b->patch);
}

static bool is_denied(const struct stall_denied_kernel *entry,
		      const struct stall_kernel_version *version)
{
	const struct stall_kernel_version *end = &entry->first;

	if (compare(version, &entry->first) < 0)
		return false;
	for (int i = 0; i < STALL_DENY_MAX_FIXED && entry->fixed[i].major; i++) {
		end = &entry->fixed[i];
		if (end->major == version->major && end->minor == version->minor)
			return version->patch < end->patch;
	}
	return compare(version, end) < 0;
}

static bool parse(const char *text, struct stall_kernel_version *ret)
{
	*ret = (struct stall_kernel_version){};
	return sscanf(text, "%d.%d.%d", &ret->major, &ret->minor, &ret->patch) >= 2;
}

// Debian and Ubuntu keep the release the same through all stable versions, so that modules still
// load: the version that the fixes are of stands elsewhere.
static bool find_version(const struct stall_kernel_names *names, struct stall_kernel_version *ret)
{
	static const char debian[] = "Debian ";
	const char *after = strstr(names->version, debian);
	const char *last = strrchr(names->signature, ' ');

	return (last && parse(last + 1, ret)) || (after && parse(after + strlen(debian), ret)) ||
	       parse(names->release, ret);
}

const struct stall_denied_kernel *stall_denylist_find(const struct stall_kernel_names *names,
						      unsigned int uses)
{
	struct stall_kernel_version version;

	if (!find_version(names, &version))
		return NULL;
	for (unsigned int i = 0; i < stall_denylist_count; i++) {
		if ((stall_denylist[i].use & uses) && is_denied(&stall_denylist[i], &version))
			return &stall_denylist[i];
	}
	return NULL;
}

struct stall_error *stall_denylist_error(const char *release,
					 const struct stall_denied_kernel *entry)
{
	return stall_error_create(STALL_ERROR_UNSUPPORTED,
				  "kernel %s is on the list of those that do not survive this: %s "
				  "(%s); --force runs it anyway",
				  release, entry->what, entry->reference);
}

struct stall_error *stall_denylist_check(unsigned int uses, bool force)
{
	_cleanup_close_ int fd = -1;
	char signature[256] = "";
	struct utsname name;

	if (force || uname(&name) < 0)
		return NULL;
	fd = open("/proc/version_signature", O_RDONLY | O_CLOEXEC);
	if (fd >= 0)
		(void)!read(fd, signature, sizeof(signature) - 1);
	const struct stall_kernel_names names = {name.release, name.version, signature};
	const struct stall_denied_kernel *entry = stall_denylist_find(&names, uses);
	return entry ? stall_denylist_error(name.release, entry) : NULL;
}
