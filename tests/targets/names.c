// SPDX-License-Identifier: Apache-2.0
// names: threads whose names are made to break terminals, JSON and HTML. Facts give them in hex.
#include "waits.h"

#include <sys/prctl.h>

static const char *const names[] = {
	"\x1b[31mred\x1b[0m",
	"a\"b\\c",
	"new\nline",
	"\xff\xfe\xfd",
	"ok\xe2\x82",
	"<script>x</b>",
	"",
	"tab\tcr\r",
	"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80",
	"}{][\",",
	"\xe2\x80\xae"
	"rtl",
	"\xed\xa0\x80",
	"(paren) S 1 2",
	"\x7f\x01\x02",
	"%s%n%x",
	"&amp;'`",
};
#define NAMES (sizeof(names) / sizeof(names[0]))

struct named {
	const char *name;
	int tid;
};

static NOIPA void *named_main(void *arg)
{
	struct named *named = arg;

	prctl(PR_SET_NAME, named->name);
	__atomic_store_n(&named->tid, gettid(), __ATOMIC_RELEASE);
	wait_pause(NULL);
	return NULL;
}

int main(void)
{
	struct named all[NAMES];

	for (size_t i = 0; i < NAMES; i++) {
		all[i] = (struct named){.name = names[i]};
		pthread_detach(target_thread(named_main, &all[i], 65536));
	}
	for (size_t i = 0; i < NAMES; i++) {
		target_wait_blocked(target_wait_set(&all[i].tid), SYS_pause, 0, 0);
		printf("{\"fact\":\"thread\",\"tid\":%d,\"wait\":\"pause\",\"name_hex\":\"",
		       all[i].tid);
		for (const char *c = names[i]; *c; c++)
			printf("%02x", (unsigned char)*c);
		printf("\",\"frames\":[\"wait_pause\",\"named_main\"]}\n");
	}
	target_ready();
	target_serve(NULL);
}
