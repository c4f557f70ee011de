// SPDX-License-Identifier: Apache-2.0
// flip N [NANOSECONDS]: N threads that go down one chain of functions, nap there, come back and go
// down another whose frames have the same sizes. A stack that was copied while its thread ran mixes
// the two; one that is labelled verified must never. Commands: `turns`.
#include "chains.h"

CHAIN_OF(heads)
CHAIN_OF(tails)

NOIPA void heads_end(unsigned long turn)
{
	chain_nap(turn);
	KEEP_FRAME();
}

NOIPA void tails_end(unsigned long turn)
{
	chain_nap(turn);
	KEEP_FRAME();
}

static NOIPA void *flip_main(void *arg)
{
	chain_begin();
	__atomic_store_n((int *)arg, gettid(), __ATOMIC_RELEASE);
	for (unsigned long turn = 0;; turn++) {
		heads_0(turn);
		tails_0(turn);
		chain_turned();
	}
	return NULL;
}

int main(int argc, char **argv)
{
	int count = argc > 1 ? atoi(argv[1]) : 8;
	chain_nap_ns = argc > 2 ? atol(argv[2]) : chain_nap_ns;
	int *tids = calloc((size_t)count + 1, sizeof(*tids));

	if (!tids)
		target_die("calloc");
	for (int i = 0; i < count; i++)
		pthread_detach(target_thread(flip_main, &tids[i], 1 << 18));
	chain_print("heads_end", "heads", "flip_main");
	chain_print("tails_end", "tails", "flip_main");
	chain_print("target_read_command,target_serve,main", NULL, NULL);
	for (int i = 0; i < count; i++)
		printf("{\"fact\":\"flip\",\"tid\":%d}\n", target_wait_set(&tids[i]));
	target_ready();
	target_serve(chain_answer);
}
