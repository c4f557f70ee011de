// SPDX-License-Identifier: Apache-2.0
#include "capture/kernel_symbols.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "ebpf/ksym_loader.h"

// Kernel functions are smaller; an address further behind a symbol belongs to none.
#define MAX_FUNCTION (1 << 20)
// Distinct kernel addresses that are kept; a server that stalls has a hundred.
#define MAX_KNOWN 65536

struct known {
	uint64_t address, offset;
	char *name;
};

struct stall_kernel_symbols {
	struct stall_ksym_loader *bpf; // NULL: /proc/kallsyms
	bool bpf_tried;
	struct known *known; // sorted by address
	size_t count;
};

struct stall_error *stall_kernel_symbols_create(struct stall_kernel_symbols **ret)
{
	struct stall_kernel_symbols *symbols = calloc(1, sizeof(*symbols));

	if (!symbols)
		return &stall_enomem;
	*ret = symbols;
	return NULL;
}

static void forget(struct stall_kernel_symbols *symbols)
{
	for (size_t i = 0; i < symbols->count; i++)
		free(symbols->known[i].name);
	symbols->count = 0;
}

void stall_kernel_symbols_destroy(struct stall_kernel_symbols *symbols)
{
	if (!symbols)
		return;
	forget(symbols);
	stall_ksym_loader_destroy(symbols->bpf);
	free(symbols->known);
	free(symbols);
}

static int compare_known(const void *a, const void *b)
{
	const struct known *x = a, *y = b;
	return (x->address > y->address) - (x->address < y->address);
}

static struct known *find_known(const struct stall_kernel_symbols *symbols, uint64_t address)
{
	struct known key = {.address = address};

	if (!symbols->count)
		return NULL;
	return bsearch(&key, symbols->known, symbols->count, sizeof(key), compare_known);
}

// Takes the name of "function+0x12/0x34 [module]".
static struct stall_error *parse_name(const char *text, struct known *ret)
{
	const char *plus = strchr(text, '+');

	if (!plus || plus == text)
		return NULL;
	char *name = strndup(text, plus - text);
	if (!name)
		return &stall_enomem;
	ret->offset = strtoull(plus + 1, NULL, 16);
	ret->name = name;
	return NULL;
}

static struct stall_error *ask_kernel(struct stall_kernel_symbols *symbols, struct known *wanted,
				      size_t count)
{
	for (size_t i = 0; i < count; i++) {
		const char *text;
		// A return address may be behind a function that never returns: use that of the
		// call.
		struct stall_error *err =
			stall_ksym_loader_find(symbols->bpf, wanted[i].address - 1, &text);
		if (!err)
			err = parse_name(text, &wanted[i]);
		if (err)
			return err;
		if (wanted[i].name)
			wanted[i].offset++;
	}
	return NULL;
}

struct kallsyms_line {
	uint64_t address;
	char type;
	const char *name;
	size_t length;
};

static bool parse_line(const char *line, struct kallsyms_line *ret)
{
	char *rest;

	ret->address = strtoull(line, &rest, 16);
	if (rest == line || *rest != ' ' || !rest[1] || rest[2] != ' ')
		return false;
	ret->type = rest[1];
	ret->name = rest + 3;
	ret->length = strcspn(ret->name, "\t\n ");
	return ret->length > 0;
}

// kallsyms lists modules after the kernel, so the nearest symbol below is kept for each address.
static struct stall_error *match_line(const struct kallsyms_line *line, struct known *wanted,
				      size_t count, uint64_t *starts)
{
	size_t low = 0, high = count;

	while (low < high) {
		size_t middle = (low + high) / 2;
		if (wanted[middle].address - 1 < line->address)
			low = middle + 1;
		else
			high = middle;
	}
	for (; low < count && wanted[low].address - 1 - line->address < MAX_FUNCTION; low++) {
		if (line->address <= starts[low])
			continue;
		char *name = strndup(line->name, line->length);
		if (!name)
			return &stall_enomem;
		free(wanted[low].name);
		wanted[low].name = name;
		wanted[low].offset = wanted[low].address - line->address;
		starts[low] = line->address;
	}
	return NULL;
}

static struct stall_error *read_kallsyms(struct known *wanted, size_t count)
{
	_cleanup_free_ uint64_t *starts = calloc(count, sizeof(*starts));
	_cleanup_free_ char *text = NULL;
	size_t size = 0;
	bool any = false;

	if (!starts)
		return &stall_enomem;
	_cleanup_fclose_ FILE *file = fopen("/proc/kallsyms", "re");
	if (!file)
		return stall_error_os(errno, "/proc/kallsyms: kernel frames have no names");
	while (getline(&text, &size, file) > 0) {
		struct kallsyms_line line;
		if (!parse_line(text, &line) || !line.address)
			continue;
		any = true;
		if (tolower(line.type) != 't' && tolower(line.type) != 'w')
			continue;
		struct stall_error *err = match_line(&line, wanted, count, starts);
		if (err)
			return err;
	}
	if (!any)
		return stall_error_create(
			STALL_ERROR_PERMISSION,
			"/proc/kallsyms hides its addresses: kernel frames have no names; "
			"give CAP_SYSLOG or set kernel.kptr_restrict to 0 or 1");
	return NULL;
}

static struct stall_error *find_new(struct stall_kernel_symbols *symbols, struct known *wanted,
				    size_t count)
{
	if (!symbols->bpf_tried) {
		symbols->bpf_tried = true;
		stall_error_destroy(stall_ksym_loader_create(&symbols->bpf));
	}
	if (symbols->bpf) {
		_cleanup_error_ struct stall_error *err = ask_kernel(symbols, wanted, count);
		if (!err)
			return NULL;
		for (size_t i = 0; i < count; i++) {
			free(wanted[i].name);
			wanted[i].name = NULL;
		}
		stall_ksym_loader_destroy(symbols->bpf);
		symbols->bpf = NULL;
	}
	return read_kallsyms(wanted, count);
}

// The addresses among the queries that are not known yet, sorted, each once.
static struct known *collect_new(const struct stall_kernel_symbols *symbols,
				 const struct stall_kernel_symbol *queries, size_t count,
				 size_t *ret_count)
{
	struct known *wanted = calloc(count + 1, sizeof(*wanted));
	size_t found = 0, distinct = 0;

	if (!wanted)
		return NULL;
	for (size_t i = 0; i < count; i++)
		if (!find_known(symbols, queries[i].address))
			wanted[found++].address = queries[i].address;
	qsort(wanted, found, sizeof(*wanted), compare_known);
	for (size_t i = 0; i < found; i++)
		if (!distinct || wanted[i].address != wanted[distinct - 1].address)
			wanted[distinct++].address = wanted[i].address;
	*ret_count = distinct;
	return wanted;
}

static struct stall_error *keep(struct stall_kernel_symbols *symbols, const struct known *wanted,
				size_t count)
{
	if (!stall_array_resize(&symbols->known, symbols->count + count))
		return &stall_enomem;
	memcpy(symbols->known + symbols->count, wanted, count * sizeof(*wanted));
	symbols->count += count;
	qsort(symbols->known, symbols->count, sizeof(*symbols->known), compare_known);
	return NULL;
}

struct stall_error *stall_kernel_symbols_find(struct stall_kernel_symbols *symbols,
					      struct stall_kernel_symbol *queries, size_t count)
{
	size_t missing_count;
	struct stall_error *err = NULL;

	if (symbols->count > MAX_KNOWN)
		forget(symbols);
	_cleanup_free_ struct known *wanted = collect_new(symbols, queries, count, &missing_count);
	if (!wanted)
		return &stall_enomem;
	if (missing_count) {
		err = find_new(symbols, wanted, missing_count);
		if (!err)
			err = keep(symbols, wanted, missing_count);
		if (err) {
			for (size_t i = 0; i < missing_count; i++)
				free(wanted[i].name);
			return err;
		}
	}
	for (size_t i = 0; i < count; i++) {
		const struct known *known = find_known(symbols, queries[i].address);
		queries[i].name = known->name;
		queries[i].offset = known->offset;
	}
	return NULL;
}
