// SPDX-License-Identifier: Apache-2.0
// Names of kernel addresses, compared with /proc/kallsyms: asked by BPF, and, where bpf(2) is
// refused, read from that file.
#include "capture/kernel_symbols.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "check.h"
#include "refused_call.h"

#define EVERY 30011 // one function in so many is tried: each search reads the whole list
#define MAX_QUERIES 256

struct function {
	uint64_t address;
	char name[512];
};

// Functions that are followed by another one at least 16 bytes later.
static size_t read_functions(struct function *ret)
{
	FILE *file = fopen("/proc/kallsyms", "r");
	struct function before = {}, now;
	size_t count = 0, seen = 0;
	char type;

	while (file && count < MAX_QUERIES &&
	       fscanf(file, "%lx %c %511s%*[^\n]", &now.address, &type, now.name) == 3) {
		if (tolower(type) != 't')
			continue;
		if (before.address && now.address >= before.address + 16 && ++seen % EVERY == 0)
			ret[count++] = before;
		before = now;
	}
	if (file)
		fclose(file);
	return count;
}

// Whether kallsyms has this name at this address: several names may share one.
static int has_name(uint64_t address, const char *name)
{
	FILE *file = fopen("/proc/kallsyms", "r");
	struct function line;
	int found = 0;

	while (!found && fscanf(file, "%lx %*c %511s%*[^\n]", &line.address, line.name) == 2)
		found = line.address == address && !strcmp(line.name, name);
	fclose(file);
	return found;
}

static void check_names(const struct function *functions, size_t count)
{
	struct stall_kernel_symbol *queries = calloc(count + 1, sizeof(*queries));
	struct stall_kernel_symbols *symbols;

	CHECK_OK(stall_kernel_symbols_create(&symbols));
	for (size_t i = 0; i < count; i++)
		queries[i].address = functions[i].address + 9;
	queries[count].address = 0x1000; // no kernel's
	CHECK_OK(stall_kernel_symbols_find(symbols, queries, count + 1));
	for (size_t i = 0; i < count; i++) {
		CHECK_INT(queries[i].offset, 9);
		CHECK(queries[i].name && has_name(functions[i].address, queries[i].name));
	}
	CHECK(!queries[count].name);

	// The second time they are known; a query twice in a call is no matter.
	struct stall_kernel_symbol again[] = {{.address = queries[0].address},
					      {.address = queries[0].address}};
	CHECK_OK(stall_kernel_symbols_find(symbols, again, 2));
	CHECK(again[0].name == queries[0].name && again[1].name == queries[0].name);
	CHECK_OK(stall_kernel_symbols_find(symbols, NULL, 0));
	stall_kernel_symbols_destroy(symbols);
	free(queries);
}

int main(void)
{
	static struct function functions[MAX_QUERIES];
	size_t count = read_functions(functions);

	if (!count) {
		printf("skipped: /proc/kallsyms shows this user no addresses (needs CAP_SYSLOG)\n");
		return 77;
	}
	printf("%zu functions\n", count);
	check_names(functions, count);
	CHECK(refuse_call(SYS_bpf, EPERM, 0, BPF_JGE, 0));
	CHECK_INT(syscall(SYS_bpf, 0, NULL, 0), -1);
	check_names(functions, count);
	return check_done();
}
