// SPDX-License-Identifier: Apache-2.0
#include "command/pack_command.h"

#include "base/cleanup.h"
#include "base/json_writer.h"
#include "base/messages.h"
#include "base/output.h"
#include "command/feature_report.h"
#include "packs/pack_make.h"

static const char *symbols_name(uint8_t symbols)
{
	if (symbols == STALL_PACK_SYMTAB)
		return ".symtab";
	return symbols == STALL_PACK_MINIDEBUG ? ".gnu_debugdata" : ".dynsym";
}

static const char *text_or_null(const char *text)
{
	return *text ? text : NULL;
}

static void write_summary(struct stall_json *json, const struct stall_pack_options *options,
			  const struct stall_pack_summary *summary)
{
	stall_json_open(json, '{');
	stall_json_member_string(json, "file", options->file);
	stall_json_member_string(json, "pack", options->output);
	stall_json_member_string(json, "identity", summary->identity);
	stall_json_member_string(json, "debug_file", text_or_null(summary->debug_file));
	stall_json_member_string(json, "symbols", symbols_name(summary->symbols));
	stall_json_member_uint(json, "functions", summary->functions);
	stall_json_member_uint(json, "objects", summary->objects);
	stall_json_member_uint(json, "structures", summary->structures);
	stall_json_member_uint(json, "layouts", summary->layouts);
	stall_json_member_string(json, "layouts_missing", text_or_null(summary->layouts_missing));
	stall_json_member_uint(json, "bytes", summary->bytes);
	stall_json_close(json, '}');
	stall_json_newline(json);
}

static struct stall_error *report(const struct stall_pack_options *options,
				  const struct stall_pack_summary *summary, int out)
{
	_cleanup_(stall_json_deinit) struct stall_json json = {};

	write_summary(&json, options, summary);
	return stall_lines_write(&json, out);
}

struct stall_error *stall_pack_run(const struct stall_pack_options *options, int out)
{
	_cleanup_(stall_output_destroyp) struct stall_output *output = NULL;
	struct stall_pack_summary summary;
	unsigned int missing;

	struct stall_error *err =
		stall_output_create(options->output, options->force_overwrite, &output);
	if (err)
		return err;
	// Names of functions are no secret, and the process that reads ELF files is nobody's.
	stall_output_let_all_read(output);
	err = stall_pack_make(options->file, options->debug_dir, output, &summary, &missing);
	if (!err)
		err = stall_output_commit(output);
	if (err)
		return err;
	stall_missing_layers_report(missing);
	return report(options, &summary, out);
}
