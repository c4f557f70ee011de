// SPDX-License-Identifier: Apache-2.0
#include "introspect/postgres_locks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "proc/read_child.h"

#define MAX_WAITERS 4096
#define MAX_NODES 16384
#define MAX_STEPS 256 // reads one after the other, until all lists are read
#define TABLE_SIZE (4 * MAX_NODES)

// LOCK, alike in 9.6 to 18; lists are two pointers, back and forth, in each of them.
#define LOCK_SIZE 152
#define LOCK_TYPE 14
#define LOCK_METHOD 15
#define LOCK_HOLDERS 24 // procLocks
#define LOCK_QUEUE 40	// waitProcs
#define LOCK_REQUESTED 104
#define LOCK_GRANTED 148
// PROCLOCK
#define NODE_SIZE 64
#define NODE_LOCK 0 // tag.myLock
#define NODE_PROC 8
#define NODE_LEADER 16
#define NODE_HELD 24 // holdMask
#define NODE_LINK 32 // lockLink
#define NEXT 8	     // in a list's pair of pointers; PGPROC begins with one

#define MODES 8
#define METHODS 2

// Bit N: it conflicts with mode N (LockConflicts, storage/lmgr/lock.c). Both lock methods have it.
static const uint32_t conflicts[MODES + 1] = {
	0, 0x100, 0x180, 0x1e0, 0x1f0, 0x1d8, 0x1f8, 0x1fc, 0x1fe,
};

enum tag {
	TAG_RELATION,
	TAG_EXTEND,
	TAG_FROZEN_IDS, // since 13
	TAG_PAGE,
	TAG_TUPLE,
	TAG_TRANSACTION,
	TAG_VIRTUAL,
	TAG_TOKEN,
	TAG_OBJECT,
	TAG_USER,
	TAG_ADVISORY,
	TAG_APPLY,
	TAGS,
};

struct lock {
	uint64_t address;
	uint8_t bytes[LOCK_SIZE];
	bool valid;
};

// A PROCLOCK: a backend holds the lock, or waits for it.
struct node {
	uint64_t address;
	uint32_t lock; // index
	bool valid;
	uint8_t bytes[NODE_SIZE];
};

struct waiter {
	uint32_t slot, backend;
	uint64_t lock, node; // addresses
	uint32_t mode;
	uint32_t lock_index;
};

struct locks {
	const struct stall_postgres_server *server;
	struct waiter *waiters;
	size_t waiter_count;
	struct lock *locks; // by address
	size_t lock_count;
	struct node *nodes;
	size_t node_count;
	uint32_t *holders; // nodes that hold a lock
	size_t holder_count;
	uint32_t *table; // address of a node to its index + 1
	struct stall_read *reads;
};

static void locks_deinit(struct locks *locks)
{
	free(locks->waiters);
	free(locks->locks);
	free(locks->nodes);
	free(locks->holders);
	free(locks->table);
	free(locks->reads);
}

static int compare_waiters(const void *a, const void *b)
{
	const struct waiter *x = a, *y = b;

	if (x->lock != y->lock)
		return x->lock < y->lock ? -1 : 1;
	return (x->slot > y->slot) - (x->slot < y->slot);
}

static bool take_waiter(const struct stall_postgres_server *server, uint32_t slot,
			struct waiter *ret)
{
	const struct stall_postgres_layout *layout = &server->layout;
	const uint8_t *proc = stall_postgres_proc(server, slot);
	pid_t pid = (pid_t)stall_postgres_u32(proc, layout->proc_pid);

	*ret = (struct waiter){
		.slot = slot,
		.lock = stall_postgres_u64(proc, layout->wait_lock),
		.node = stall_postgres_u64(proc, layout->wait_proc_lock),
		.mode = stall_postgres_u32(proc, layout->wait_mode),
	};
	if (pid <= 0 || !ret->mode || ret->mode > MODES ||
	    !stall_postgres_is_shared(server, ret->lock, LOCK_SIZE) ||
	    !stall_postgres_is_shared(server, ret->node, NODE_SIZE))
		return false;
	size_t backend = stall_postgres_find(server, pid);
	ret->backend = (uint32_t)backend;
	return backend != SIZE_MAX;
}

static struct stall_error *find_waiters(struct locks *locks)
{
	const struct stall_postgres_server *server = locks->server;

	locks->waiters = calloc(MAX_WAITERS, sizeof(*locks->waiters));
	if (!locks->waiters)
		return &stall_enomem;
	for (uint32_t i = 0; i < server->proc_count && locks->waiter_count < MAX_WAITERS; i++)
		locks->waiter_count += take_waiter(server, i, &locks->waiters[locks->waiter_count]);
	qsort(locks->waiters, locks->waiter_count, sizeof(*locks->waiters), compare_waiters);
	return NULL;
}

static bool is_lock(const struct lock *lock)
{
	int32_t requested = (int32_t)stall_postgres_u32(lock->bytes, LOCK_REQUESTED);
	int32_t granted = (int32_t)stall_postgres_u32(lock->bytes, LOCK_GRANTED);

	return lock->bytes[LOCK_TYPE] < TAGS && lock->bytes[LOCK_METHOD] >= 1 &&
	       lock->bytes[LOCK_METHOD] <= METHODS && granted >= 0 && requested > granted;
}

static struct stall_error *read_locks(struct locks *locks)
{
	locks->locks = calloc(locks->waiter_count + 1, sizeof(*locks->locks));
	locks->reads = calloc(MAX_NODES + MAX_WAITERS, sizeof(*locks->reads));
	if (!locks->locks || !locks->reads)
		return &stall_enomem;
	for (size_t i = 0; i < locks->waiter_count; i++) {
		struct waiter *waiter = &locks->waiters[i];

		if (!i || waiter->lock != waiter[-1].lock)
			locks->locks[locks->lock_count++].address = waiter->lock;
		waiter->lock_index = (uint32_t)locks->lock_count - 1;
	}
	for (size_t i = 0; i < locks->lock_count; i++)
		locks->reads[i] = (struct stall_read){
			.address = locks->locks[i].address,
			.buf = locks->locks[i].bytes,
			.size = LOCK_SIZE,
		};
	stall_postgres_read_shared(locks->server, locks->reads, locks->lock_count);
	for (size_t i = 0; i < locks->lock_count; i++)
		locks->locks[i].valid =
			locks->reads[i].done == LOCK_SIZE && is_lock(&locks->locks[i]);
	return NULL;
}

static uint32_t *find_node(struct locks *locks, uint64_t address)
{
	uint64_t hash = address * UINT64_C(0x9e3779b97f4a7c15) >> 32;

	// Never full: there are at most MAX_NODES.
	for (;; hash++) {
		uint32_t *at = &locks->table[hash % TABLE_SIZE];

		if (!*at || locks->nodes[*at - 1].address == address)
			return at;
	}
}

static void add_node(struct locks *locks, uint64_t address, uint32_t lock)
{
	if (locks->node_count == MAX_NODES ||
	    !stall_postgres_is_shared(locks->server, address, NODE_SIZE))
		return;
	uint32_t *at = find_node(locks, address);
	if (*at)
		return;
	locks->nodes[locks->node_count] = (struct node){.address = address, .lock = lock};
	*at = (uint32_t)++locks->node_count;
}

static void add_link(struct locks *locks, uint64_t link, uint32_t lock)
{
	if (link != locks->locks[lock].address + LOCK_HOLDERS)
		add_node(locks, link - NODE_LINK, lock);
}

static void read_nodes(struct locks *locks, size_t first)
{
	size_t count = locks->node_count - first;

	for (size_t i = 0; i < count; i++)
		locks->reads[i] = (struct stall_read){
			.address = locks->nodes[first + i].address,
			.buf = locks->nodes[first + i].bytes,
			.size = NODE_SIZE,
		};
	stall_postgres_read_shared(locks->server, locks->reads, count);
	for (size_t i = 0; i < count; i++) {
		struct node *node = &locks->nodes[first + i];

		node->valid = locks->reads[i].done == NODE_SIZE &&
			      stall_postgres_u64(node->bytes, NODE_LOCK) ==
				      locks->locks[node->lock].address;
	}
}

// Those of waiters are known; the lists are followed from all of them at once.
static struct stall_error *walk(struct locks *locks)
{
	locks->nodes = calloc(MAX_NODES, sizeof(*locks->nodes));
	locks->table = calloc(TABLE_SIZE, sizeof(*locks->table));
	if (!locks->nodes || !locks->table)
		return &stall_enomem;
	for (size_t i = 0; i < locks->waiter_count; i++)
		if (locks->locks[locks->waiters[i].lock_index].valid)
			add_node(locks, locks->waiters[i].node, locks->waiters[i].lock_index);
	for (uint32_t i = 0; i < locks->lock_count; i++)
		if (locks->locks[i].valid)
			add_link(locks,
				 stall_postgres_u64(locks->locks[i].bytes, LOCK_HOLDERS + NEXT), i);
	size_t first = 0;
	for (int step = 0; step < MAX_STEPS && first < locks->node_count; step++) {
		size_t end = locks->node_count;

		read_nodes(locks, first);
		for (; first < end; first++)
			if (locks->nodes[first].valid)
				add_link(locks,
					 stall_postgres_u64(locks->nodes[first].bytes,
							    NODE_LINK + NEXT),
					 locks->nodes[first].lock);
	}
	// Beyond the limit they were not read.
	locks->holders = calloc(first + 1, sizeof(*locks->holders));
	if (!locks->holders)
		return &stall_enomem;
	for (uint32_t i = 0; i < first; i++)
		if (locks->nodes[i].valid && stall_postgres_u32(locks->nodes[i].bytes, NODE_HELD))
			locks->holders[locks->holder_count++] = i;
	return NULL;
}

// The address of the leader of a parallel query, or of the backend itself.
static uint64_t leader_of(const struct stall_postgres_server *server, uint32_t slot)
{
	uint64_t leader =
		stall_postgres_u64(stall_postgres_proc(server, slot), server->layout.leader);

	return leader ? leader
		      : server->procs + (uint64_t)slot * (uint64_t)server->layout.proc_size;
}

static bool waits(const struct locks *locks, uint32_t slot)
{
	return stall_postgres_u64(stall_postgres_proc(locks->server, slot),
				  locks->server->layout.wait_lock) != 0;
}

// How good a holder is to name: a thread of the snapshot, and one that waits for no lock itself.
static int rank(const struct locks *locks, const struct node *node)
{
	uint32_t slot =
		stall_postgres_slot(locks->server, stall_postgres_u64(node->bytes, NODE_PROC));

	if (slot == UINT32_MAX)
		return 0;
	pid_t pid = (pid_t)stall_postgres_u32(stall_postgres_proc(locks->server, slot),
					      locks->server->layout.proc_pid);
	if (stall_postgres_find(locks->server, pid) == SIZE_MAX)
		return 1;
	return waits(locks, slot) ? 2 : 3;
}

// A PROCLOCK that keeps the waiter waiting. NULL: none.
static const struct node *find_holder(const struct locks *locks, const struct waiter *waiter)
{
	const struct node *found = NULL;
	uint64_t leader = leader_of(locks->server, waiter->slot);

	for (size_t i = 0; i < locks->holder_count; i++) {
		const struct node *node = &locks->nodes[locks->holders[i]];

		if (node->lock != waiter->lock_index ||
		    !(stall_postgres_u32(node->bytes, NODE_HELD) & conflicts[waiter->mode]) ||
		    stall_postgres_u64(node->bytes, NODE_LEADER) == leader)
			continue;
		if (!found || rank(locks, node) > rank(locks, found))
			found = node;
	}
	return found;
}

// The first in the queue whose wish conflicts. UINT32_MAX: none.
static uint32_t find_before(const struct locks *locks, const struct waiter *waiter)
{
	const struct stall_postgres_server *server = locks->server;
	const struct lock *lock = &locks->locks[waiter->lock_index];
	uint64_t next = stall_postgres_u64(lock->bytes, LOCK_QUEUE + NEXT);

	for (uint32_t i = 0; i < server->proc_count; i++) {
		uint32_t slot = stall_postgres_slot(server, next);

		if (slot == UINT32_MAX || slot == waiter->slot)
			return UINT32_MAX;
		const uint8_t *proc = stall_postgres_proc(server, slot);
		uint32_t mode = stall_postgres_u32(proc, server->layout.wait_mode);
		if (stall_postgres_u64(proc, server->layout.wait_lock) != waiter->lock)
			return UINT32_MAX;
		if (mode <= MODES && (conflicts[waiter->mode] >> mode & 1) &&
		    leader_of(server, slot) != leader_of(server, waiter->slot))
			return slot;
		next = stall_postgres_u64(proc, NEXT);
	}
	return UINT32_MAX;
}

static enum tag tag_of(const struct stall_postgres_server *server, const struct lock *lock)
{
	uint8_t tag = lock->bytes[LOCK_TYPE];

	return (enum tag)(server->layout.version < 1300 && tag >= TAG_FROZEN_IDS ? tag + 1 : tag);
}

static enum stall_postgres_object object_of(enum tag tag)
{
	switch (tag) {
	case TAG_RELATION:
	case TAG_EXTEND:
	case TAG_PAGE:
		return STALL_POSTGRES_TABLE;
	case TAG_TUPLE:
	case TAG_TRANSACTION:
	case TAG_TOKEN:
		return STALL_POSTGRES_ROW;
	default:
		return STALL_POSTGRES_OTHER;
	}
}

// Names of relations are not in shared memory: their numbers are.
static void describe(enum tag tag, const uint8_t *bytes, char *ret, size_t size)
{
	uint32_t first = stall_postgres_u32(bytes, 0), second = stall_postgres_u32(bytes, 4),
		 third = stall_postgres_u32(bytes, 8),
		 fourth = stall_postgres_u32(bytes, 12) & 0xffff;

	switch (tag) {
	case TAG_RELATION:
		snprintf(ret, size, "relation %u of database %u", second, first);
		return;
	case TAG_EXTEND:
		snprintf(ret, size, "extension of relation %u of database %u", second, first);
		return;
	case TAG_FROZEN_IDS:
		snprintf(ret, size, "frozen ids of database %u", first);
		return;
	case TAG_PAGE:
		snprintf(ret, size, "page %u of relation %u of database %u", third, second, first);
		return;
	case TAG_TUPLE:
		snprintf(ret, size, "tuple (%u,%u) of relation %u of database %u", third, fourth,
			 second, first);
		return;
	case TAG_TRANSACTION:
		snprintf(ret, size, "transaction %u", first);
		return;
	case TAG_VIRTUAL:
		snprintf(ret, size, "virtual transaction %u/%u", first, second);
		return;
	case TAG_TOKEN:
		snprintf(ret, size, "speculative token %u of transaction %u", second, first);
		return;
	case TAG_OBJECT:
		snprintf(ret, size, "object %u of class %u of database %u", third, second, first);
		return;
	case TAG_ADVISORY:
		snprintf(ret, size, "advisory lock [%u,%u,%u,%u]", first, second, third, fourth);
		return;
	case TAG_APPLY:
		snprintf(ret, size, "remote transaction %u of subscription %u of database %u",
			 third, second, first);
		return;
	default:
		snprintf(ret, size, "user lock %u/%u", first, second);
	}
}

// What is read again: the waiter's PGPROC, and the PROCLOCK or the PGPROC that it waits for.
struct proof {
	uint64_t wait[2]; // waitLock, waitProcLock
	uint8_t held[NODE_SIZE];
	uint64_t before;
	const struct node *node;
	uint32_t slot; // in front of it
	uint32_t holder_slot;
};

static void take_wait(const struct locks *locks, const struct waiter *waiter, struct proof *proof,
		      struct stall_postgres_wait *ret)
{
	const struct stall_postgres_server *server = locks->server;
	const struct lock *lock = &locks->locks[waiter->lock_index];
	enum tag tag = tag_of(server, lock);

	*ret = (struct stall_postgres_wait){
		.thread = server->backends[waiter->backend].thread,
		.owner = STALL_POSTGRES_NO_OWNER,
		.lock = waiter->lock,
		.object = object_of(tag),
		.mode = waiter->mode,
	};
	describe(tag, lock->bytes, ret->name, sizeof(ret->name));
	*proof = (struct proof){.node = find_holder(locks, waiter), .slot = UINT32_MAX};
	if (!proof->node)
		proof->slot = find_before(locks, waiter);
	uint32_t slot =
		proof->node ? stall_postgres_slot(server,
						  stall_postgres_u64(proof->node->bytes, NODE_PROC))
			    : proof->slot;
	proof->holder_slot = slot;
	if (slot == UINT32_MAX)
		return;
	pid_t pid = (pid_t)stall_postgres_u32(stall_postgres_proc(server, slot),
					      server->layout.proc_pid);
	ret->owner_raw = pid > 0 ? pid : 0;
	size_t owner = pid > 0 ? stall_postgres_find(server, pid) : SIZE_MAX;
	if (owner != SIZE_MAX)
		ret->owner = server->backends[owner].thread;
}

static bool is_proven(const struct locks *locks, const struct waiter *waiter,
		      const struct proof *proof)
{
	if (proof->wait[0] != waiter->lock || proof->wait[1] != waiter->node)
		return false;
	if (proof->node)
		return !memcmp(proof->held, proof->node->bytes, NODE_LINK);
	return proof->slot == UINT32_MAX || proof->before == waiter->lock;
}

#define PROOFS 2 // reads for each

static void read_again(const struct locks *locks, struct proof *proofs, struct stall_read *reads)
{
	const struct stall_postgres_server *server = locks->server;
	const struct stall_postgres_layout *layout = &server->layout;

	for (size_t i = 0; i < locks->waiter_count; i++) {
		uint64_t own = server->procs +
			       (uint64_t)locks->waiters[i].slot * (uint64_t)layout->proc_size;
		uint64_t other =
			server->procs + (uint64_t)proofs[i].slot * (uint64_t)layout->proc_size;

		reads[PROOFS * i] = (struct stall_read){own + (uint64_t)layout->wait_lock,
							proofs[i].wait, 16, 0};
		reads[PROOFS * i + 1] = (struct stall_read){
			.address = other + (uint64_t)layout->wait_lock,
			.buf = &proofs[i].before,
			.size = proofs[i].slot == UINT32_MAX ? 0 : 8,
		};
		if (proofs[i].node)
			reads[PROOFS * i + 1] = (struct stall_read){proofs[i].node->address,
								    proofs[i].held, NODE_SIZE, 0};
	}
	stall_postgres_read_shared(server, reads, PROOFS * locks->waiter_count);
}

// A wait that was over in the second read is left out: nobody knows who is waited for now.
static struct stall_error *take_waits(struct locks *locks, struct stall_postgres_waits *ret)
{
	size_t count = locks->waiter_count;
	_cleanup_free_ struct proof *proofs = calloc(count + 1, sizeof(*proofs));
	_cleanup_free_ struct stall_read *reads = calloc(count + 1, PROOFS * sizeof(*reads));
	_cleanup_free_ struct stall_postgres_wait *found = calloc(count + 1, sizeof(*found));

	if (!proofs || !reads || !found || !stall_array_resize(&ret->waits, ret->count + count))
		return &stall_enomem;
	for (size_t i = 0; i < count; i++)
		if (locks->locks[locks->waiters[i].lock_index].valid)
			take_wait(locks, &locks->waiters[i], &proofs[i], &found[i]);
	read_again(locks, proofs, reads);
	for (size_t i = 0; i < count; i++) {
		const struct waiter *waiter = &locks->waiters[i];

		if (locks->locks[waiter->lock_index].valid && is_proven(locks, waiter, &proofs[i]))
			ret->waits[ret->count++] = found[i];
	}
	return NULL;
}

struct stall_error *stall_postgres_read_locks(const struct stall_postgres_server *server,
					      struct stall_postgres_waits *ret)
{
	_cleanup_(locks_deinit) struct locks locks = {.server = server};

	if (!server->proc_bytes)
		return NULL;
	struct stall_error *err = find_waiters(&locks);
	if (err || !locks.waiter_count)
		return err;
	err = read_locks(&locks);
	if (!err)
		err = walk(&locks);
	return err ? err : take_waits(&locks, ret);
}
