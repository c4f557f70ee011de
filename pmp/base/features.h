// SPDX-License-Identifier: Apache-2.0
// Features of this machine for this user. Each is found by trying, none from a version.
#ifndef STALL_FEATURES_H
#define STALL_FEATURES_H

#include <stddef.h>

#include "base/error.h"

struct stall_feature {
	const char *name;
	// NULL where it works; else the message says why not and, behind "; ", how to fix it.
	struct stall_error *(*check)(void);
};

extern const struct stall_feature stall_features[];
extern const size_t stall_feature_count;

#endif
