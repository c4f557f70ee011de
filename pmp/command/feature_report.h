// SPDX-License-Identifier: Apache-2.0
// Features of this machine, for this user.
#ifndef STALL_FEATURE_REPORT_H
#define STALL_FEATURE_REPORT_H

#include "base/error.h"

// Writes one JSON object (stallscope.features/1).
struct stall_error *stall_features_write(int fd);

// Says on standard error without which layers a hostile file was parsed (sandbox/sandbox.h), where its
// result has no place for that.
void stall_missing_layers_report(unsigned int missing);

#endif
