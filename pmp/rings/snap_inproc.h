// SPDX-License-Identifier: Apache-2.0
// The backend `inproc`: a snapshot of a live process from the ring that it writes itself.
#ifndef STALL_SNAP_INPROC_H
#define STALL_SNAP_INPROC_H

#include "snapshot/backend.h"

extern const struct stall_backend stall_backend_inproc;

#endif
