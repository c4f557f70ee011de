// SPDX-License-Identifier: Apache-2.0
#include "capture/backends.h"

#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"

#define BACKEND(name) &stall_backend_##name,
const struct stall_backend *const stall_backends[] = {STALL_BACKENDS(BACKEND)};
#undef BACKEND
const size_t stall_backend_count = sizeof(stall_backends) / sizeof(stall_backends[0]);

static struct stall_error *no_such_backend(const char *name)
{
	_cleanup_free_ char *names = NULL;
	size_t size;
	FILE *file = open_memstream(&names, &size);

	if (!file)
		return &stall_enomem;
	fprintf(file, "auto");
	for (size_t i = 0; i < stall_backend_count; i++)
		fprintf(file, "%s%s", i + 1 < stall_backend_count ? ", " : " or ",
			stall_backends[i]->name);
	if (fclose(file))
		return &stall_enomem;
	return stall_error_create(STALL_ERROR_USAGE, "no backend \"%s\": take %s", name, names);
}

static struct stall_error *choose_named(const char *name,
					const struct stall_snapshot_options *options,
					const struct stall_backend **ret, char **ret_reason)
{
	for (size_t i = 0; i < stall_backend_count; i++) {
		if (strcmp(stall_backends[i]->name, name))
			continue;
		struct stall_error *err = stall_backends[i]->check(options);
		if (err)
			return err;
		char *reason = strdup("asked for by name");
		if (!reason)
			return &stall_enomem;
		*ret = stall_backends[i];
		*ret_reason = reason;
		return NULL;
	}
	return no_such_backend(name);
}

// Appends to a list of reasons; false without memory.
static bool append_reason(char **reasons, const char *name, const char *why)
{
	char *longer;

	if (asprintf(&longer, "%s%s%s: %s", *reasons ? *reasons : "", *reasons ? "; " : "", name,
		     why) < 0)
		return false;
	free(*reasons);
	*reasons = longer;
	return true;
}

static struct stall_error *choose_auto(bool allow_stop,
				       const struct stall_snapshot_options *options,
				       const struct stall_backend **ret, char **ret_reason)
{
	_cleanup_free_ char *reasons = NULL;

	for (size_t i = 0; i < stall_backend_count; i++) {
		const struct stall_backend *backend = stall_backends[i];

		if (backend->stops_threads && !allow_stop) {
			if (!append_reason(&reasons, backend->name,
					   "not taken, since it stops threads (--allow-stop)"))
				return &stall_enomem;
			continue;
		}
		_cleanup_error_ struct stall_error *err = backend->check(options);
		if (err) {
			if (!append_reason(&reasons, backend->name, err->message))
				return &stall_enomem;
			continue;
		}
		if (!append_reason(&reasons, backend->name,
				   backend->stops_threads ? "works here"
							  : "works here and stops no thread"))
			return &stall_enomem;
		*ret = backend;
		*ret_reason = no_cleanup_ptr(reasons);
		return NULL;
	}
	return stall_error_create(STALL_ERROR_UNSUPPORTED, "no backend works here: %s", reasons);
}

struct stall_error *stall_backend_choose(const char *name, bool allow_stop,
					 const struct stall_snapshot_options *options,
					 const struct stall_backend **ret, char **ret_reason)
{
	if (strcmp(name, "auto"))
		return choose_named(name, options, ret, ret_reason);
	return choose_auto(allow_stop, options, ret, ret_reason);
}
