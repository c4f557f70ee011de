// SPDX-License-Identifier: Apache-2.0
#include "introspect/postgres_server.h"

#include <stdlib.h>

#include "base/cleanup.h"
#include "proc/read_child.h"

#define MAX_TRIES 16		 // backends that are asked for the arrays
#define MAX_BACKENDS 262143	 // max_connections, utils/misc/guc_tables.c
#define MAX_AUXILIARY 64	 // entries behind those of backends
#define MAX_ARRAY (64 << 20)	 // bytes
#define MAX_QUERY_SIZE (1 << 20) // track_activity_query_size
#define MAX_VARIABLES (4 << 20)	 // bytes of the program's variables
#define MAX_POINTERS 4096

void stall_postgres_read_own(const struct stall_postgres_server *server, uint32_t backend,
			     struct stall_read *reads, size_t count)
{
	uint32_t process = server->backends[backend].process;

	// A process whose memory is locked gives nothing: that is no error.
	stall_error_destroy(stall_read_child_memory(&server->snapshot->processes[process].target,
						    reads, count));
}

void stall_postgres_read_shared(const struct stall_postgres_server *server,
				struct stall_read *reads, size_t count)
{
	stall_postgres_read_own(server, server->reader, reads, count);
}

bool stall_postgres_is_shared(const struct stall_postgres_server *server, uint64_t address,
			      uint64_t size)
{
	return address >= server->shared && address < server->shared_end &&
	       size <= server->shared_end - address && !(address & 7);
}

static int compare_pids(const void *a, const void *b)
{
	const struct stall_postgres_backend *x = a, *y = b;

	return (x->pid > y->pid) - (x->pid < y->pid);
}

size_t stall_postgres_find(const struct stall_postgres_server *server, pid_t pid)
{
	const struct stall_postgres_backend key = {.pid = pid};
	const struct stall_postgres_backend *found =
		bsearch(&key, server->backends, server->backend_count, sizeof(key), compare_pids);

	return found ? (size_t)(found - server->backends) : SIZE_MAX;
}

// What one backend knows.
struct own {
	int32_t pid, number, backends, query_size;
	uint64_t entry, proc, procs;
};

static bool read_variables(const struct stall_postgres_server *server, uint32_t backend,
			   struct own *ret)
{
	const uint64_t *symbols = server->symbols;
	bool numbered = server->layout.version >= 1700;
	struct stall_read reads[] = {
		{.address = symbols[STALL_PG_PID], .buf = &ret->pid, .size = 4},
		{.address = symbols[STALL_PG_PROC], .buf = &ret->proc, .size = 8},
		{.address = symbols[STALL_PG_PROCS], .buf = &ret->procs, .size = 8},
		{.address = symbols[STALL_PG_BACKENDS], .buf = &ret->backends, .size = 4},
		{.address = symbols[STALL_PG_QUERY_SIZE], .buf = &ret->query_size, .size = 4},
		{.address = symbols[numbered ? STALL_PG_NUMBER : STALL_PG_ID],
		 .buf = &ret->number,
		 .size = 4},
		{.address = symbols[STALL_PG_ENTRY], .buf = &ret->entry, .size = 8},
	};
	const size_t count = sizeof(reads) / sizeof(*reads);
	size_t wanted = server->symbols[STALL_PG_ENTRY] ? count : count - 1;

	*ret = (struct own){};
	stall_postgres_read_own(server, backend, reads, wanted);
	for (size_t i = 0; i < wanted; i++)
		if (reads[i].done != reads[i].size)
			return false;
	// MyBackendId counts from 1.
	ret->number -= !numbered;
	return ret->pid == server->backends[backend].pid && ret->proc && ret->number >= 0 &&
	       ret->backends > 0 && ret->backends <= MAX_BACKENDS &&
	       ret->number < ret->backends + MAX_AUXILIARY;
}

static const struct stall_mapping *find_mapping(const struct stall_postgres_server *server,
						uint32_t backend, uint64_t address)
{
	const struct stall_process *process =
		&server->snapshot->processes[server->backends[backend].process];

	return process->maps ? stall_maps_find(process->maps, address) : NULL;
}

static bool use_shared(struct stall_postgres_server *server, uint32_t backend, uint64_t proc)
{
	const struct stall_mapping *mapping = find_mapping(server, backend, proc);

	if (!mapping || !mapping->readable || mapping->module != STALL_NO_MODULE)
		return false;
	server->reader = backend;
	server->shared = mapping->start;
	server->shared_end = mapping->end;
	return stall_postgres_is_shared(server, proc, (uint64_t)server->layout.proc_size);
}

// Distinct pointers to entries among the variables of a program that does not export MyBEEntry.
static size_t list_pointers(const struct stall_postgres_server *server, const uint8_t *bytes,
			    size_t size, uint64_t *ret)
{
	size_t count = 0;

	for (size_t at = 0; at + 8 <= size && count < MAX_POINTERS; at += 8) {
		uint64_t value = stall_postgres_u64(bytes + at, 0);

		if (stall_postgres_is_shared(server, value, (uint64_t)server->layout.entry_size))
			ret[count++] = value;
	}
	return count;
}

// MyBEEntry is static before 14: it is the one pointer among the program's variables to an object in
// shared memory with the backend's own pid where an entry has it. 0: none, or several.
static struct stall_error *search_entry(const struct stall_postgres_server *server, uint64_t *ret)
{
	const struct stall_postgres_layout *layout = &server->layout;
	const struct stall_mapping *mapping =
		find_mapping(server, server->reader, server->symbols[STALL_PG_PROC]);
	uint64_t found = 0;
	size_t size = mapping ? mapping->end - mapping->start : 0;

	*ret = 0;
	if (!size || size > MAX_VARIABLES)
		return NULL;
	_cleanup_free_ uint8_t *bytes = malloc(size);
	_cleanup_free_ uint64_t *pointers = calloc(MAX_POINTERS, sizeof(*pointers));
	_cleanup_free_ struct stall_read *reads = calloc(MAX_POINTERS, sizeof(*reads));
	_cleanup_free_ uint32_t *pids = calloc(MAX_POINTERS, sizeof(*pids));
	if (!bytes || !pointers || !reads || !pids)
		return &stall_enomem;
	struct stall_read all = {.address = mapping->start, .buf = bytes, .size = size};
	stall_postgres_read_own(server, server->reader, &all, 1);
	size_t count = list_pointers(server, bytes, all.done, pointers);
	for (size_t i = 0; i < count; i++)
		reads[i] = (struct stall_read){.address = pointers[i] + (uint64_t)layout->pid,
					       .buf = &pids[i],
					       .size = 4};
	stall_postgres_read_shared(server, reads, count);
	for (size_t i = 0; i < count; i++) {
		if (reads[i].done != 4 || (pid_t)pids[i] != server->backends[server->reader].pid ||
		    pointers[i] == found)
			continue;
		if (found)
			return NULL;
		found = pointers[i];
	}
	*ret = found;
	return NULL;
}

static void use_entries(struct stall_postgres_server *server, const struct own *own)
{
	uint64_t size = (uint64_t)server->layout.entry_size;
	uint64_t before = (uint64_t)own->number * size;
	uint64_t count = (uint64_t)own->backends + MAX_AUXILIARY;

	if (!stall_postgres_is_shared(server, own->entry, size) ||
	    own->entry - server->shared < before)
		return;
	server->entries = own->entry - before;
	// The array may end earlier than that: what is behind it is no entry.
	if (count > (server->shared_end - server->entries) / size)
		count = (server->shared_end - server->entries) / size;
	if (count > MAX_ARRAY / size)
		count = MAX_ARRAY / size;
	server->entry_count = (uint32_t)count;
}

static void use_procs(struct stall_postgres_server *server, const struct own *own)
{
	const struct stall_postgres_layout *layout = &server->layout;
	uint64_t size = (uint64_t)layout->proc_size, procs;
	uint32_t count;
	struct stall_read reads[] = {
		{.address = own->procs + (uint64_t)layout->procs, .buf = &procs, .size = 8},
		{.address = own->procs + (uint64_t)layout->proc_count, .buf = &count, .size = 4},
	};

	if (!stall_postgres_is_shared(server, own->procs, 64))
		return;
	stall_postgres_read_shared(server, reads, 2);
	if (reads[0].done != 8 || reads[1].done != 4 || !count || count > MAX_ARRAY / size ||
	    !stall_postgres_is_shared(server, procs, size * count) || own->proc < procs ||
	    (own->proc - procs) % size || (own->proc - procs) / size >= count)
		return;
	server->procs = procs;
	server->proc_count = count;
}

static struct stall_error *find_arrays(struct stall_postgres_server *server, bool *ret_found)
{
	struct own own;

	*ret_found = false;
	// The latest are more likely to serve a connection.
	for (size_t i = 0; i < server->backend_count && i < MAX_TRIES; i++) {
		uint32_t backend = (uint32_t)(server->backend_count - 1 - i);

		if (!read_variables(server, backend, &own) ||
		    !use_shared(server, backend, own.proc))
			continue;
		if (!server->symbols[STALL_PG_ENTRY]) {
			struct stall_error *err = search_entry(server, &own.entry);
			if (err)
				return err;
		}
		use_entries(server, &own);
		use_procs(server, &own);
		if (own.query_size > 0 && own.query_size <= MAX_QUERY_SIZE)
			server->query_size = (uint32_t)own.query_size;
		*ret_found = server->entries || server->procs;
		if (server->entries)
			return NULL;
	}
	return NULL;
}

struct stall_error *stall_postgres_server_init(struct stall_postgres_server *server,
					       const struct stall_snapshot *snapshot,
					       const uint64_t symbols[STALL_PG_SYMBOLS],
					       const struct stall_layout *layout,
					       struct stall_postgres_backend *backends,
					       size_t count, bool *ret_found)
{
	*server = (struct stall_postgres_server){
		.snapshot = snapshot,
		.backends = backends,
		.backend_count = count,
	};
	*ret_found = false;
	qsort(backends, count, sizeof(*backends), compare_pids);
	memcpy(server->symbols, symbols, sizeof(server->symbols));
	if (!stall_postgres_layout_choose(server->symbols, layout, &server->layout))
		return NULL;
	return find_arrays(server, ret_found);
}

void stall_postgres_server_deinit(struct stall_postgres_server *server)
{
	free(server->proc_bytes);
	server->proc_bytes = NULL;
}

uint32_t stall_postgres_slot(const struct stall_postgres_server *server, uint64_t address)
{
	uint64_t size = (uint64_t)server->layout.proc_size;

	if (address < server->procs || (address - server->procs) % size ||
	    (address - server->procs) / size >= server->proc_count)
		return UINT32_MAX;
	return (uint32_t)((address - server->procs) / size);
}

struct stall_error *stall_postgres_read_procs(struct stall_postgres_server *server)
{
	size_t size = (size_t)server->layout.proc_size * server->proc_count;

	if (!server->procs)
		return NULL;
	_cleanup_free_ uint8_t *bytes = malloc(size);
	if (!bytes)
		return &stall_enomem;
	struct stall_read read = {.address = server->procs, .buf = bytes, .size = size};
	stall_postgres_read_shared(server, &read, 1);
	if (read.done == size)
		server->proc_bytes = no_cleanup_ptr(bytes);
	return NULL;
}
