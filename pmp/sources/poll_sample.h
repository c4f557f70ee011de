// SPDX-License-Identifier: Apache-2.0
// What the threads of a poller do at one moment, from /proc. Of a thread that has slept since an
// earlier sample nothing is read again.
#ifndef STALL_POLL_SAMPLE_H
#define STALL_POLL_SAMPLE_H

#include <stdbool.h>
#include <stddef.h>

#include "sources/poller.h"

// The caller has the poller's lock.
void stall_poll_sample(struct stall_poller *poller, stall_sample_fn take, void *arg);

// From the text of a stat file. False: not there.
bool stall_poll_parse_state(const char *text, char *ret);
// From the text of a wchan file; "": none.
void stall_poll_parse_channel(const char *text, char ret[STALL_CHANNEL]);

#endif
