// SPDX-License-Identifier: Apache-2.0
// mapper N: a process with N mappings of memory and of its own file, and one blocked thread.
#include "levels.h"
#include "waits.h"

static NOIPA void *mapped_main(void *arg)
{
	__atomic_store_n((int *)arg, gettid(), __ATOMIC_RELEASE);
	levels_descend(6, wait_mutex, NULL);
	return NULL;
}

int main(int argc, char **argv)
{
	long count = argc > 1 ? atol(argv[1]) : 30000, page = sysconf(_SC_PAGESIZE);
	int self = open("/proc/self/exe", O_RDONLY | O_CLOEXEC), tid = 0;

	if (self < 0)
		target_die("/proc/self/exe");
	for (long i = 0; i < count; i++) {
		// Adjacent mappings with the same protection would be merged; every 16th is of the
		// file, and executable, as a module's are.
		bool file = i % 16 == 0;
		int prot = file	   ? PROT_READ | PROT_EXEC
			   : i % 2 ? PROT_READ
				   : PROT_READ | PROT_WRITE;

		if (mmap(NULL, (size_t)page, prot, MAP_PRIVATE | (file ? 0 : MAP_ANONYMOUS),
			 file ? self : -1, 0) == MAP_FAILED)
			target_die("mmap");
	}
	waits_init();
	pthread_detach(target_thread(mapped_main, &tid, 65536));
	waits_wait_blocked(waits_find("mutex"), target_wait_set(&tid));
	levels_print(6);
	printf("{\"fact\":\"thread\",\"tid\":%d,\"wait\":\"mutex\",\"syscall\":202,"
	       "\"leaf\":\"wait_mutex\",\"depth\":6,\"root\":\"mapped_main\"}\n",
	       tid);
	target_ready();
	target_serve(NULL);
}
