// SPDX-License-Identifier: Apache-2.0
#include "capture/backends.h"

#include <string.h>

#include "base/cleanup.h"
#include "rings/snap_inproc.h"

// In the order of preference: exact and never stopping; exact for the price of a stop; neither
// exact nor whole, but without privileges; without any right, of processes that record themselves.
static const struct stall_backend *const backends[] = {
	&stall_backend_bpf,
	&stall_backend_ptrace,
	&stall_backend_proc,
	&stall_backend_inproc,
};
#define BACKENDS (sizeof(backends) / sizeof(backends[0]))

static struct stall_error *choose_named(const char *name,
					const struct stall_snapshot_options *options,
					const struct stall_backend **ret, char **ret_reason)
{
	for (size_t i = 0; i < BACKENDS; i++) {
		if (strcmp(backends[i]->name, name))
			continue;
		struct stall_error *err = backends[i]->check(options);
		if (err)
			return err;
		char *reason = strdup("asked for by name");
		if (!reason)
			return &stall_enomem;
		*ret = backends[i];
		*ret_reason = reason;
		return NULL;
	}
	return stall_error_create(STALL_ERROR_USAGE,
				  "no backend \"%s\": take auto, bpf, ptrace, proc or inproc",
				  name);
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

	for (size_t i = 0; i < BACKENDS; i++) {
		const struct stall_backend *backend = backends[i];

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
