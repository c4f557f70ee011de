// SPDX-License-Identifier: Apache-2.0
// The processes of one PostgreSQL, and its shared memory, which they all have at the same address.
#ifndef STALL_POSTGRES_SERVER_H
#define STALL_POSTGRES_SERVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/types.h>

#include "base/error.h"
#include "introspect/postgres_layout.h"
#include "snapshot/snapshot.h"

struct stall_postgres_backend {
	pid_t pid; // in the server's pid namespace
	uint32_t process, thread;
};

struct stall_postgres_server {
	const struct stall_snapshot *snapshot;
	struct stall_postgres_layout layout;
	uint64_t symbols[STALL_PG_SYMBOLS];
	struct stall_postgres_backend *backends; // by pid
	size_t backend_count;
	uint32_t reader;	     // index of the backend that shared memory is read through
	uint64_t shared, shared_end; // the mapping
	uint64_t entries, procs;     // addresses of the arrays; 0 unknown
	uint32_t entry_count, proc_count;
	uint32_t query_size; // bytes of a statement that the server keeps, with its end
	uint8_t *proc_bytes; // the array of PGPROC as it was read; NULL: not known
};

// `symbols`: the addresses of the program's variables. `backends` are of one server; they are sorted, and
// must outlive it. *ret_found is false where it is no PostgreSQL, or none that is known.
struct stall_error *stall_postgres_server_init(struct stall_postgres_server *server,
					       const struct stall_snapshot *snapshot,
					       const uint64_t symbols[STALL_PG_SYMBOLS],
					       const struct stall_layout *layout,
					       struct stall_postgres_backend *backends,
					       size_t count, bool *ret_found);
void stall_postgres_server_deinit(struct stall_postgres_server *server);

// Of one backend's own memory, or of the shared memory. What cannot be read has `done` less than
// `size`.
void stall_postgres_read_own(const struct stall_postgres_server *server, uint32_t backend,
			     struct stall_read *reads, size_t count);
void stall_postgres_read_shared(const struct stall_postgres_server *server,
				struct stall_read *reads, size_t count);
bool stall_postgres_is_shared(const struct stall_postgres_server *server, uint64_t address,
			      uint64_t size);

// SIZE_MAX: none of the snapshot's.
size_t stall_postgres_find(const struct stall_postgres_server *server, pid_t pid);

// Reads the array of PGPROC. It stays NULL where that is not what it should be.
struct stall_error *stall_postgres_read_procs(struct stall_postgres_server *server);
static inline const uint8_t *stall_postgres_proc(const struct stall_postgres_server *server,
						 uint32_t slot)
{
	return server->proc_bytes + (size_t)slot * (size_t)server->layout.proc_size;
}
// UINT32_MAX: it is not the address of one.
uint32_t stall_postgres_slot(const struct stall_postgres_server *server, uint64_t address);

static inline uint32_t stall_postgres_u32(const uint8_t *bytes, int32_t offset)
{
	uint32_t value;

	memcpy(&value, bytes + offset, sizeof(value));
	return value;
}

static inline uint64_t stall_postgres_u64(const uint8_t *bytes, int32_t offset)
{
	uint64_t value;

	memcpy(&value, bytes + offset, sizeof(value));
	return value;
}

#endif
