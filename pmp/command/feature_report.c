// SPDX-License-Identifier: Apache-2.0
#include "command/feature_report.h"

#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>

#include "base/cleanup.h"
#include "base/features.h"
#include "base/json_writer.h"
#include "base/messages.h"
#include "capture/backends.h"
#include "capture/kernel_symbols.h"
#include "ebpf/bpf_features.h"
#include "sandbox/sandbox.h"

// Errors have the problem first and, behind "; ", its solution.
static void write_feature(struct stall_json *json, const char *name, struct stall_error *err)
{
	stall_json_key(json, name);
	stall_json_open(json, '{');
	stall_json_member_bool(json, "ok", !err);
	if (err) {
		const char *fix = strstr(err->message, "; ");
		size_t length = fix ? (size_t)(fix - err->message) : strlen(err->message);
		stall_json_key(json, "why");
		stall_json_string_n(json, err->message, length);
		stall_json_member_string(json, "fix", fix ? fix + 2 : NULL);
	}
	stall_json_close(json, '}');
	stall_error_destroy(err);
}

// A backend works where it can be opened.
static struct stall_error *check_backend(const struct stall_backend *backend)
{
	struct stall_snapshot_options options;
	void *state = NULL;

	stall_snapshot_options_init(&options);
	struct stall_error *err = backend->check(&options);
	if (!err)
		err = backend->open(&options, &state);
	if (!err && state)
		backend->close(state);
	return err;
}

// Whether kernel frames get names. Any address is suitable.
static struct stall_error *check_kernel_symbols(void)
{
	struct stall_kernel_symbols *symbols;
	struct stall_kernel_symbol query = {.address = UINT64_C(0xffffffff81000001)};
	struct stall_error *err = stall_kernel_symbols_create(&symbols);

	if (err)
		return err;
	err = stall_kernel_symbols_find(symbols, &query, 1);
	stall_kernel_symbols_destroy(symbols);
	return err;
}

static void write_features(struct stall_json *json, const struct stall_feature *features,
			   size_t count)
{
	for (size_t i = 0; i < count; i++)
		write_feature(json, features[i].name, features[i].check());
}

struct stall_error *stall_features_write(int fd)
{
	_cleanup_(stall_json_deinit) struct stall_json json = {};
	struct utsname name = {};

	uname(&name);
	stall_json_open(&json, '{');
	stall_json_member_string(&json, "schema", "stallscope.features/1");
	stall_json_member_string(&json, "kernel", name.release);
	stall_json_key(&json, "features");
	stall_json_open(&json, '{');
	// The backends first, then the features that they use.
	for (size_t i = 0; i < stall_backend_count; i++)
		write_feature(&json, stall_backends[i]->feature, check_backend(stall_backends[i]));
	write_feature(&json, "kernel-symbols", check_kernel_symbols());
	write_feature(&json, "sandbox", stall_sandbox_check(stall_sandbox_try()));
	write_features(&json, stall_features, stall_feature_count);
#ifdef STALL_HAVE_BPF
	write_features(&json, stall_bpf_features, stall_bpf_feature_count);
	write_features(&json, stall_waits_features, stall_waits_feature_count);
#endif
	stall_json_close(&json, '}');
	stall_json_close(&json, '}');
	stall_json_newline(&json);
	return stall_lines_write(&json, fd);
}

void stall_missing_layers_report(unsigned int missing)
{
	_cleanup_error_ struct stall_error *err = stall_sandbox_check(missing);

	if (err)
		fprintf(stderr, "stallscope-probe: %s\n", err->message);
}
