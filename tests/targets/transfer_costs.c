// SPDX-License-Identifier: Apache-2.0
// transfer_costs: measures what a library that interposes pread(2) and pwrite(2) adds to a call
// that does not block. Command: `read BATCHES` or `write BATCHES`. Batches of calls by name and
// batches of libc's own function take turns in one thread, on the same memory: two processes
// differ by more than what is measured.
#include "batches.h"

#include <dlfcn.h>
#include <sys/mman.h>

#define SIZE 16384
#define BATCH 100

typedef ssize_t transfer(int, void *, size_t, off_t);

static int file;
static char *block;

static NOIPA double batch_ns(transfer *call)
{
	uint64_t start = batches_now(CLOCK_THREAD_CPUTIME_ID);

	for (int i = 0; i < BATCH; i++)
		if (call(file, block, SIZE, 0) != SIZE)
			target_die("transfer");
	return (double)(batches_now(CLOCK_THREAD_CPUTIME_ID) - start) / BATCH;
}

static void compare(const char *name, unsigned int batches)
{
	transfer *by_name = *name == 'r' ? pread : (transfer *)(void *)pwrite;
	transfer *own = (transfer *)dlsym(dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD),
					  *name == 'r' ? "pread" : "pwrite");
	double *without = calloc(batches, sizeof(*without)),
	       *added = calloc(batches, sizeof(*added));

	if (!own || !without || !added)
		target_die("compare");
	for (unsigned int i = 0; i < batches; i++) {
		bool is_first = i % 2;
		double ns = is_first ? batch_ns(by_name) : 0;

		without[i] = batch_ns(own);
		added[i] = (is_first ? ns : batch_ns(by_name)) - without[i];
	}
	printf("{\"without\":%.2f,\"added\":%.2f,\"interposed\":%d}\n",
	       batches_median(without, batches), batches_median(added, batches), by_name != own);
	free(without);
	free(added);
}

static void answer(const char *command)
{
	unsigned int batches;
	char name[8];

	if (sscanf(command, "%7s %u", name, &batches) == 2 && batches && batches <= 1000000)
		compare(name, batches);
	else
		printf("{\"error\":\"no such command\"}\n");
}

int main(void)
{
	batches_stay_here();
	file = memfd_create("transfers", MFD_CLOEXEC);
	block = aligned_alloc(4096, SIZE);
	if (file < 0 || !block || ftruncate(file, SIZE))
		target_die("memfd_create");
	target_wait_first();
	target_ready();
	target_serve(answer);
}
