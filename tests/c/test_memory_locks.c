// SPDX-License-Identifier: Apache-2.0
// Locks of servers in images of their memory: those that fit together, and those that do not.
#include <linux/futex.h>
#include <stdlib.h>
#include <sys/syscall.h>

#include "base/clock.h"
#include "check.h"
#include "lock/lock.h"
#include "lock/memory_locks.h"
#include "lock/metadata_locks.h"
#include "lock/row_locks.h"
#include "lock/server_memory.h"
#include "lock/sux_locks.h"
#include "lock/sync_cells.h"
#include "lock/thd.h"
#include "lock/thread_numbers.h"

#define BASE UINT64_C(0x10000)
#define IMAGE (512 * 1024)
#define THREADS 5

static uint8_t image[IMAGE];
// The image changes before the read of this address with this number; 0: never.
static unsigned int reads, change_at;
static uint64_t change_address, change_value;

static void put_sized(uint64_t address, uint64_t value, size_t size)
{
	memcpy(image + (address - BASE), &value, size);
}

static void put(uint64_t address, uint64_t value)
{
	put_sized(address, value, 8);
}

static void put_half(uint64_t address, uint32_t value)
{
	put_sized(address, value, 4);
}

static void put_text(uint64_t address, const char *text, size_t size)
{
	memcpy(image + (address - BASE), text, size);
}

static size_t read_image(void *arg, uint32_t process, uint64_t address, void *buf, size_t size)
{
	reads += address <= change_address && change_address < address + size;
	if (change_at && reads == change_at)
		put(change_address, change_value);
	if (address < BASE || address - BASE >= IMAGE)
		return 0;
	if (size > IMAGE - (address - BASE))
		size = IMAGE - (address - BASE);
	memcpy(buf, image + (address - BASE), size);
	return size;
}

static struct stall_thread threads[THREADS];
static struct stall_process process;
static struct stall_snapshot snapshot = {
	.memory = {.read = read_image},
	.processes = &process,
	.process_count = 1,
	.threads = threads,
	.thread_count = THREADS,
};
static struct stall_memory_lock found[THREADS];
static struct stall_memory_waiter waiters[THREADS];
static struct stall_thds thds;
static struct stall_thread_numbers numbers;
static struct stall_server_global globals[STALL_SERVER_GLOBALS];
static struct stall_layout layout;
static struct stall_server_memory memory = {
	.snapshot = &snapshot,
	.layout = &layout,
	.globals = globals,
	.thds = &thds,
	.numbers = &numbers,
	.waiters = waiters,
	.found = found,
};

#define PTHREAD(i) (UINT64_C(0x700000000000) + (uint64_t)(i)*0x1000)
#define THD(i) (BASE + 0x2000 + (uint64_t)(i)*0x2000)

static void know_threads(void)
{
	stall_thds_deinit(&thds);
	CHECK_OK(stall_thds_init(&thds, &snapshot, 0, &layout));
	stall_thread_numbers_deinit(&numbers);
	CHECK_OK(stall_thread_numbers_init(&numbers, &snapshot, 0));
}

static void begin(const char *text)
{
	memset(image, 0, sizeof(image));
	memset(found, 0, sizeof(found));
	memset(globals, 0, sizeof(globals));
	stall_layout_deinit(&layout);
	CHECK_OK(stall_layout_add(&layout, text));
	for (int i = 0; i < THREADS; i++) {
		threads[i] = (struct stall_thread){.tid = 1000 + i,
						   .ns_tid = 100 + i,
						   .fs_base = PTHREAD(i)};
		found[i].owner = STALL_NO_THREAD;
	}
	know_threads();
	memory.waiter_count = 0;
	change_at = reads = 0;
}

static void add_waiter(uint32_t thread, uint64_t word)
{
	waiters[memory.waiter_count++] =
		(struct stall_memory_waiter){.thread = thread, .pair = word & ~UINT64_C(7)};
}

/* Metadata locks, as in MySQL 5.5.9. */

#define MDL                                                                                        \
	"THD.mdl_context=0xc8 THD.real_id=0x17b8 MDL_context.m_wait=0 "                            \
	"MDL_context.m_waiting_for=264 MDL_wait.m_COND_wait_status=48 MDL_ticket.m_type=40 "       \
	"MDL_ticket.m_ctx=48 MDL_ticket.m_lock=56 MDL_lock.key=8 MDL_key.m_db_name_length=2 "      \
	"MDL_key.m_ptr=4 mdl.global=0 mdl.scopes=0x83 mdl.object.3=0xc0 mdl.object.7=0xfe "        \
	"mdl.scope.0=0x82 "
static const char mdl[] = MDL "MDL_ticket.next_in_lock=24 MDL_lock.m_granted.m_list.m_first=520";
#define CONTEXT(i) (THD(i) + 0xc8)
#define TICKET(i) (BASE + 0x10000 + (uint64_t)(i)*64)
#define LOCK (BASE + 0x11000)
#define GRANTED (LOCK + 520)
#define SYSTEM (BASE + 0x34000)
#define READ 3
#define ALL 7

static void add_ticket(int number, int thread, uint32_t type)
{
	put_half(TICKET(number) + 40, type);
	put(TICKET(number) + 48, CONTEXT(thread));
	put(TICKET(number) + 56, LOCK);
}

static void let_wait(int number, int thread, uint32_t type)
{
	add_ticket(number, thread, type);
	put(CONTEXT(thread) + 264, TICKET(number));
	add_waiter(thread, CONTEXT(thread) + 48 + 40); // glibc 2.25 to 2.40
}

// Thread 1 wants all of the table, 2 wants to read it, 3 reads it.
static void begin_mdl_of(const char *text)
{
	begin(text);
	for (int i = 0; i < THREADS; i++)
		put(THD(i) + 0x17b8, PTHREAD(i));
	put_sized(LOCK + 10, strlen("shop"), 2);
	put_text(LOCK + 12, "\2shop\0orders", 13);
	let_wait(1, 1, ALL);
	let_wait(2, 2, READ);
	add_ticket(3, 3, READ);
	put(GRANTED, TICKET(3));
}

static void begin_mdl(void)
{
	begin_mdl_of(mdl);
}

static void test_metadata(void)
{
	begin_mdl();
	CHECK_OK(stall_metadata_locks_find(&memory));
	for (int i = 1; i < 3; i++) {
		CHECK(found[i].found);
		CHECK_INT(found[i].kind, STALL_LOCK_METADATA);
		CHECK_INT(found[i].address, LOCK);
		CHECK_INT(found[i].owner, 3);
		CHECK_STRING(found[i].name, "shop.orders");
	}
	CHECK(!found[0].found && !found[3].found && !found[4].found);

	// The other places of the words in a condition variable.
	static const int starts[] = {0, 32};
	for (int i = 0; i < 2; i++) {
		begin_mdl();
		waiters[0].pair = CONTEXT(1) + 48 + starts[i];
		CHECK_OK(stall_metadata_locks_find(&memory));
		CHECK(found[1].found);
	}

	// It sleeps on something else.
	begin_mdl();
	waiters[0].pair = CONTEXT(1) + 48 + 16;
	CHECK_OK(stall_metadata_locks_find(&memory));
	CHECK(!found[1].found);
	CHECK(found[2].found);

	// A request that the granted tickets allow: the one before it in the queue is not looked for.
	begin_mdl();
	put_half(TICKET(1) + 40, READ);
	CHECK_OK(stall_metadata_locks_find(&memory));
	CHECK(found[1].found);
	CHECK_INT(found[1].owner, STALL_NO_THREAD);

	// Without the rules of this version, nobody is named.
	begin_mdl_of(strstr(mdl, "MDL_context.m_wait="));
	CHECK_OK(stall_layout_add(&layout, "THD.mdl_context=0xc8"));
	CHECK_OK(stall_metadata_locks_find(&memory));
	CHECK_INT(found[1].owner, STALL_NO_THREAD); // no THD.real_id
}

static void test_metadata_holders(void)
{
	// Who waits for the lock itself is between the others and the holder.
	begin_mdl();
	add_ticket(4, 1, READ);
	put(TICKET(4) + 24, TICKET(3));
	put(GRANTED, TICKET(4));
	put_half(TICKET(2) + 40, ALL);
	CHECK_OK(stall_metadata_locks_find(&memory));
	CHECK_INT(found[1].owner, 3);
	CHECK_INT(found[2].owner, 3);

	// A THD of no thread: a prepared transaction, or a pool of threads.
	begin_mdl();
	put(THD(3) + 0x17b8, 0x7123000);
	CHECK_OK(stall_metadata_locks_find(&memory));
	CHECK(found[1].found);
	CHECK_INT(found[1].owner, STALL_NO_THREAD);

	// A lock of the whole server.
	begin_mdl();
	put(LOCK + 8, 0);
	memset(image + (LOCK + 8 - BASE), 0, 32);
	put_half(TICKET(1) + 40, 0);
	put_half(TICKET(2) + 40, 0);
	put_half(TICKET(3) + 40, 1);
	CHECK_OK(stall_metadata_locks_find(&memory));
	CHECK_STRING(found[1].name, "global");
	CHECK_INT(found[1].owner, 3);
}

static void test_fields(void)
{
	static const uint8_t bytes[12] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};

	CHECK_INT(stall_half(bytes, sizeof(bytes), 8), 0x0c0b0a09);
	CHECK(stall_word(bytes, sizeof(bytes), 4) == UINT64_C(0x0c0b0a0908070605));
	CHECK_INT(stall_half(bytes, sizeof(bytes), 9), 0);
	CHECK_INT(stall_word(bytes, sizeof(bytes), 5), 0);
	CHECK_INT(stall_word(bytes, sizeof(bytes), -1), 0);
	CHECK_INT(stall_word(bytes, sizeof(bytes), INT64_MAX), 0);
	CHECK_INT(stall_word(bytes, 7, 0), 0);
}

static void test_hostile_metadata(void)
{
	static const struct {
		bool found; // the lock, without its owner
		struct {
			uint64_t address, value;
			size_t size;
		} changes[2];
	} cases[] = {
		// A ticket that holds nobody up: in a circle, and with a next one far away.
		{true, {{TICKET(3) + 40, 0, 4}, {TICKET(3) + 24, TICKET(3), 8}}},
		{true, {{TICKET(3) + 40, 0, 4}, {TICKET(3) + 24, UINT64_MAX & ~UINT64_C(7), 8}}},
		{true, {{TICKET(3) + 56, LOCK + 8, 8}}}, // of another lock
		{true, {{GRANTED, TICKET(3) + 1, 8}}},
		{true, {{TICKET(3) + 40, 77, 4}}}, // no mode
		{false, {{LOCK + 10, 60000, 2}}},  // no length of this name
		{false, {{LOCK + 15, 1, 1}}},	   // no letter
		// Tickets that end with the memory, and that lie across.
		{false,
		 {{CONTEXT(1) + 264, BASE + IMAGE - 8, 8}, {CONTEXT(2) + 264, TICKET(2) + 4, 8}}},
		{false,
		 {{TICKET(1) + 56, BASE + IMAGE - 64, 8}, {TICKET(2) + 56, BASE + IMAGE - 64, 8}}},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		begin_mdl();
		for (int k = 0; k < 2 && cases[i].changes[k].size; k++)
			put_sized(cases[i].changes[k].address, cases[i].changes[k].value,
				  cases[i].changes[k].size);
		CHECK_OK(stall_metadata_locks_find(&memory));
		CHECK_INT(found[1].found, cases[i].found);
		for (int thread = 0; thread < THREADS; thread++)
			CHECK(!found[thread].found || found[thread].owner == STALL_NO_THREAD);
	}
	// A layout whose fields are behind what is read of the structure.
	begin_mdl();
	CHECK_OK(stall_layout_add(&layout, "MDL_key.m_db_name_length=65000"));
	CHECK_OK(stall_metadata_locks_find(&memory));
	CHECK(!found[1].found);
	begin_mdl();
	put(TICKET(1) + 48, CONTEXT(2)); // of another context
	CHECK_OK(stall_metadata_locks_find(&memory));
	CHECK(!found[1].found);
}

// What changes before the last look at it is not named: the holder's ticket is another's, or the
// waiter has what it wanted.
static void test_changing_metadata(void)
{
	for (unsigned int at = 1; at <= 2; at++) {
		begin_mdl();
		change_at = at;
		change_address = TICKET(3) + 48;
		change_value = CONTEXT(4);
		CHECK_OK(stall_metadata_locks_find(&memory));
		CHECK_INT(reads, 2);
		CHECK_INT(found[1].owner, at == 1 ? 4 : STALL_NO_THREAD);
		begin_mdl();
		change_at = at;
		change_address = CONTEXT(1) + 264;
		change_value = 0;
		CHECK_OK(stall_metadata_locks_find(&memory));
		CHECK_INT(reads, at == 1 ? 1 : 2);
		CHECK(!found[1].found);
		CHECK(found[2].found);
	}
	change_at = 0;
}

// With the THDs of threads known, a context must be the thread's own.
static void test_known_thds(void)
{
	begin_mdl();
	CHECK_OK(stall_layout_add(&layout, "thd.tls=-16"));
	for (int i = 0; i < THREADS; i++) {
		threads[i].fs_base = BASE + 0x20000 + (uint64_t)i * 64;
		put(threads[i].fs_base - 16, THD(i));
		put(THD(i) + 0x17b8, threads[i].fs_base);
	}
	know_threads();
	CHECK_INT(stall_thd_of(&thds, 3), THD(3));
	CHECK_INT(stall_thds_find(&thds, THD(3)), 3);
	CHECK_INT(stall_thds_find(&thds, THD(3) + 8), UINT32_MAX);
	CHECK_OK(stall_metadata_locks_find(&memory));
	CHECK_INT(found[1].owner, 3);

	memset(found, 0, sizeof(found));
	waiters[0].thread = 4; // sleeps on a word of another's THD
	CHECK_OK(stall_metadata_locks_find(&memory));
	CHECK(!found[4].found);
	CHECK(found[2].found);

	// The two ways to a thread do not agree.
	memset(found, 0, sizeof(found));
	put(THD(3) + 0x17b8, threads[0].fs_base);
	CHECK_OK(stall_metadata_locks_find(&memory));
	CHECK_INT(found[2].owner, STALL_NO_THREAD);

	// Two threads with one THD: neither is it.
	put(threads[0].fs_base - 16, THD(3));
	know_threads();
	CHECK_INT(stall_thds_find(&thds, THD(3)), UINT32_MAX);
}

// MariaDB 10.6 and later: links point into tickets, and the last one to the list itself.
static void test_ring(void)
{
	begin_mdl_of(MDL "MDL_lock.m_granted.m_list.sentinel_=512 ilist_node<void>.next=0 "
			 "MDL_ticket.ilist_node<void>=8");
	put(LOCK + 512, TICKET(4) + 8);
	add_ticket(4, 4, 0);
	put(TICKET(4) + 8, TICKET(3) + 8);
	put(TICKET(3) + 8, LOCK + 512);
	CHECK_OK(stall_metadata_locks_find(&memory));
	CHECK_INT(found[1].owner, 3);

	put_half(TICKET(3) + 40, 0); // now nobody holds it up, and the list ends
	CHECK_OK(stall_metadata_locks_find(&memory));
	CHECK(found[1].found);
	CHECK_INT(found[1].owner, STALL_NO_THREAD);
	put(TICKET(3) + 8, TICKET(4) + 8); // or goes on without an end
	CHECK_OK(stall_metadata_locks_find(&memory));
	CHECK_INT(found[1].owner, STALL_NO_THREAD);
}

// MySQL 5.7 and later: the ticket is in the lists of its context alone. The lock points to its rules.
static void test_counted(void)
{
	for (int round = 0; round < 4; round++) {
		begin_mdl();
		CHECK_OK(stall_layout_add(
			&layout,
			"thd.tls=-16 mdl.counts=1 MDL_context.m_ticket_store.m_durations=112 "
			"MDL_context.m_ticket_store.m_durations#stride=16 "
			"MDL_ticket.next_in_context=8 MDL_lock.m_strategy=600 "
			"MDL_lock::MDL_lock_strategy.m_granted_incompatible=0 "
			"MDL_context.m_owner=192 THD.MDL_context_owner=0"));
		for (int i = 0; i < THREADS; i++) {
			threads[i].fs_base = BASE + 0x20000 + (uint64_t)i * 64;
			put(threads[i].fs_base - 16, THD(i));
			put(THD(i) + 0x17b8, threads[i].fs_base);
			put(CONTEXT(i) + 192, THD(i));
		}
		put(GRANTED, 0);
		put(LOCK + 600, SYSTEM);
		put(SYSTEM + 14, 0xfe); // of mode 7
		put(CONTEXT(3) + 112 + 16, TICKET(4));
		add_ticket(4, 3, 0);
		put(TICKET(4) + 8, TICKET(3));
		if (round == 1)
			put(TICKET(3) + 48, CONTEXT(4)); // in a list of another
		if (round == 2)
			put(CONTEXT(3) + 192, THD(4)); // part of another THD
		if (round == 3) {
			put_half(TICKET(3) + 40, 0);
			put(TICKET(3) + 8, TICKET(4)); // a circle
		}
		know_threads();
		CHECK_OK(stall_metadata_locks_find(&memory));
		CHECK(found[1].found);
		CHECK_INT(found[1].owner, round ? STALL_NO_THREAD : 3);
	}
}

/* Locks of rows. */

static const char row[] =
	"THD.os_thread_id=16 trx_t.lock.wait_lock=128 trx_t.lock.wait_trx=136 trx_t.lock.cond=144 "
	"trx_t.mysql_thd=256 ib_lock_t.trx=0 ib_lock_t.index=24 "
	"ib_lock_t.un_member.rec_lock.page_id=56 ib_lock_t.un_member.rec_lock.n_bits=64 "
	"ib_lock_t.un_member.tab_lock.table=56 ib_lock_t.type_mode=80 ib_lock_t#size=88 "
	"lock.table=16 "
	"dict_index_t.name=16 dict_index_t.table=24 dict_table_t.name=16";
#define TRX(i) (BASE + 0x20000 + (uint64_t)(i)*512)
#define ROW(i) (BASE + 0x24000 + (uint64_t)(i)*128)
#define INDEX (BASE + 0x26000)
#define TABLE (BASE + 0x26100)
#define TEXTS (BASE + 0x26200)
#define WAITS 256

static void name_index(int name, int table, int table_name)
{
	put(INDEX + (uint64_t)name, TEXTS);
	put(INDEX + (uint64_t)table, TABLE);
	put(TABLE + (uint64_t)table_name, TEXTS + 32);
	put_text(TEXTS, "PRIMARY", 8);
	put_text(TEXTS + 32, "shop/orders", 12);
}

// Threads 1 and 2 wait for a record that 3 holds.
static void begin_rows(void)
{
	begin(row);
	name_index(16, 24, 16);
	for (int i = 0; i < THREADS; i++) {
		put_half(THD(i) + 16, 100 + (uint32_t)i);
		put(TRX(i) + 256, THD(i));
	}
	for (int i = 1; i < 3; i++) {
		put(TRX(i) + 128, ROW(i));
		put(TRX(i) + 136, TRX(3));
		put(ROW(i), TRX(i));
		put(ROW(i) + 24, INDEX);
		put(ROW(i) + 56, UINT64_C(5) << 32 | 7);
		put_half(ROW(i) + 64, 64);
		put_half(ROW(i) + 80, WAITS | 3);
		put(ROW(i) + 88, 4); // record 2
		add_waiter((uint32_t)i, TRX(i) + 144 + 40);
	}
}

static void test_rows(void)
{
	begin_rows();
	CHECK_OK(stall_row_locks_find(&memory));
	CHECK(found[1].found && found[2].found);
	CHECK_INT(found[1].kind, STALL_LOCK_ROW);
	CHECK_INT(found[1].address, found[2].address); // one record
	CHECK_INT(found[1].owner, 3);
	CHECK_STRING(found[1].name, "index PRIMARY of shop.orders");

	begin_rows();
	put(ROW(2) + 88, 8); // record 3
	CHECK_OK(stall_row_locks_find(&memory));
	CHECK(found[1].address != found[2].address);

	begin_rows();
	put_half(ROW(1) + 80, WAITS | 16 | 4);
	put(ROW(1) + 56, TABLE);
	put_half(ROW(2) + 80, WAITS | 16 | 1);
	put(ROW(2) + 56, TABLE);
	CHECK_OK(stall_row_locks_find(&memory));
	CHECK_INT(found[1].kind, STALL_LOCK_AUTO_INC);
	CHECK_INT(found[2].kind, STALL_LOCK_TABLE);
	CHECK_STRING(found[2].name, "shop.orders");
	CHECK_INT(found[2].address, TABLE);
}

static void test_hostile_rows(void)
{
	begin_rows();
	put_half(ROW(1) + 80, 3); // was granted
	put(ROW(2), TRX(1));	  // is another's
	CHECK_OK(stall_row_locks_find(&memory));
	CHECK(!found[1].found && !found[2].found);

	begin_rows();
	put(TRX(1) + 136, TRX(1)); // waits for itself
	put(TRX(2) + 136, BASE + IMAGE - 8);
	CHECK_OK(stall_row_locks_find(&memory));
	CHECK_INT(found[1].owner, STALL_NO_THREAD);
	CHECK_INT(found[2].owner, STALL_NO_THREAD);

	begin_rows();
	put(ROW(1) + 64, UINT32_MAX & ~7u); // a bitmap of half a gigabyte
	put(ROW(2) + 88, 0);		    // without a record
	CHECK_OK(stall_row_locks_find(&memory));
	CHECK(!found[1].found && !found[2].found);

	begin_rows();
	put(TRX(1) + 256, THD(4)); // another thread's transaction
	put(TRX(3) + 256, 0);	   // nobody's: it is prepared
	CHECK_OK(stall_row_locks_find(&memory));
	CHECK(!found[1].found);
	CHECK(found[2].found);
	CHECK_INT(found[2].owner, STALL_NO_THREAD);

	// It waits for another before it is read again, or not any more.
	for (int i = 0; i < 2; i++) {
		begin_rows();
		// A condition variable may begin earlier, which is tried too.
		change_at = i ? 3 : 2;
		change_address = TRX(1) + (i ? 136 : 128);
		change_value = i ? TRX(4) : 0;
		CHECK_OK(stall_row_locks_find(&memory));
		CHECK_INT(reads, change_at);
		CHECK_INT(found[1].found, i);
		CHECK(!i || found[1].owner == STALL_NO_THREAD);
	}
	change_at = 0;
}

static const char old_row[] =
	"THD.real_id=16 srv_slot_struct.event=32 srv_slot_struct.thr=40 srv_slot_struct#size=48 "
	"os_event_struct#size=120 que_thr_struct.graph=72 que_fork_struct.trx=80 "
	"trx_struct.mysql_thd=352 trx_struct.wait_lock=400 lock_struct.trx=0 "
	"lock_struct.type_mode=24 lock_struct.hash=32 lock_struct.index=40 "
	"lock_struct.un_member.rec_lock.space=48 lock_struct.un_member.rec_lock.page_no=56 "
	"lock_struct.un_member.rec_lock.n_bits=64 lock_struct.un_member.tab_lock.table=48 "
	"lock_struct#size=72 lock.n_bits#size=8 lock_sys_struct.rec_hash=0 "
	"hash_table_struct.n_cells=0 hash_table_struct.array=8 dict_index_struct.name=16 "
	"dict_index_struct.table=32 dict_table_struct.name=16";
#define SLOTS (BASE + 0x30000)
#define EVENT(i) (BASE + 0x31000 + (uint64_t)(i)*128)
#define THR(i) (BASE + 0x32000 + (uint64_t)(i)*128)
#define FORK(i) (BASE + 0x33000 + (uint64_t)(i)*128)
#define GLOBALS (BASE + 0x34100)

static void put_row(int i, uint32_t mode, uint64_t next)
{
	put(ROW(i), TRX(i));
	put(ROW(i) + 24, mode);
	put(ROW(i) + 32, next);
	put(ROW(i) + 40, INDEX);
	put(ROW(i) + 48, 5);
	put(ROW(i) + 56, 7);
	put(ROW(i) + 64, 64);
	put(ROW(i) + 72, 4); // record 2
}

// The queue of the page: a lock of the gap, which 4 has; that of 3; the request of 1.
static void begin_old_rows(void)
{
	begin(old_row);
	name_index(16, 32, 16);
	globals[STALL_SRV_MYSQL_TABLE] = (struct stall_server_global){GLOBALS, 8};
	globals[STALL_LOCK_SYS] = (struct stall_server_global){GLOBALS + 8, 8};
	put(GLOBALS, SLOTS);
	put(GLOBALS + 8, SYSTEM);
	put(SYSTEM, SYSTEM + 16);
	put(SYSTEM + 16, 1); // a cell
	put(SYSTEM + 24, SYSTEM + 32);
	put(SYSTEM + 32, ROW(4));
	for (int i = 0; i < THREADS; i++) {
		put(THD(i) + 16, PTHREAD(i));
		put(TRX(i) + 352, THD(i));
	}
	put_row(4, 32 | 512 | 3, ROW(3));
	put_row(3, 32 | 3, ROW(1));
	put_row(1, 32 | WAITS | 3, 0);
	put(TRX(1) + 400, ROW(1));
	put(SLOTS + 5 * 48 + 32, EVENT(1));
	put(SLOTS + 5 * 48 + 40, THR(1));
	put(THR(1) + 72, FORK(1));
	put(FORK(1) + 80, TRX(1));
	add_waiter(1, EVENT(1) + 56 + 40);
}

static void test_old_rows(void)
{
	begin_old_rows();
	CHECK_OK(stall_row_locks_find(&memory));
	CHECK(found[1].found);
	CHECK_INT(found[1].owner, 3);
	CHECK_STRING(found[1].name, "index PRIMARY of shop.orders");

	begin_old_rows();
	put(ROW(3) + 72, 8); // of another record
	CHECK_OK(stall_row_locks_find(&memory));
	CHECK_INT(found[1].owner, STALL_NO_THREAD);

	begin_old_rows();
	put_row(3, 32 | WAITS | 3, ROW(3)); // waits too; a circle
	CHECK_OK(stall_row_locks_find(&memory));
	CHECK_INT(found[1].owner, STALL_NO_THREAD);

	begin_old_rows();
	put(SYSTEM + 16, UINT64_MAX); // the cell is far away
	CHECK_OK(stall_row_locks_find(&memory));
	CHECK_INT(found[1].owner, STALL_NO_THREAD);

	begin_old_rows();
	waiters[0].pair = EVENT(2) + 56 + 40; // of no slot
	CHECK_OK(stall_row_locks_find(&memory));
	CHECK(!found[1].found);
}

/* InnoDB's wait array. */

static const char sync_55[] =
	"sync_array_struct.n_reserved=0 sync_array_struct.n_cells=8 sync_array_struct.array=16 "
	"sync_cell_struct.wait_object=0 sync_cell_struct.request_type=24 "
	"sync_cell_struct.thread=48 "
	"sync_cell_struct#size=80 rw_lock_struct.lock_word=0 rw_lock_struct.recursive=16 "
	"rw_lock_struct.writer_thread=24 rw_lock_struct.event=32 rw_lock_struct.wait_ex_event=40 "
	"rw_lock_struct.cfile_name=80 rw_lock_struct.cline=112 rw_lock_struct#size=120 "
	"rw_lock.cline#mask=0x3fff rw_lock.x_decrement=0x100000 mutex_struct.event=0 "
	"mutex_struct.cfile_name=40 mutex_struct.cline=48 mutex_struct#size=72 "
	"os_event_struct#size=120";
#define ARRAY (BASE + 0x40000)
#define CELLS (BASE + 0x40100)
#define LATCH (BASE + 0x48000)

// Thread 1 waits for a latch of which thread 3 is the writer.
static void begin_sync(int64_t lock_word, uint32_t type)
{
	begin(sync_55);
	globals[STALL_SYNC_PRIMARY_WAIT_ARRAY] = (struct stall_server_global){GLOBALS, 8};
	put(GLOBALS, ARRAY);
	put(ARRAY, 1);
	put(ARRAY + 8, 10000);
	put(ARRAY + 16, CELLS);
	put(CELLS + 80, LATCH);
	put_half(CELLS + 80 + 24, type);
	put(CELLS + 80 + 48, PTHREAD(1));
	put(LATCH, (uint64_t)lock_word);
	put(LATCH + 16, 1);
	put(LATCH + 24, PTHREAD(3));
	put(LATCH + 32, EVENT(1));
	put(LATCH + 40, EVENT(2));
	put(LATCH + 80, TEXTS);
	put_half(LATCH + 112, 1684 | 3 << 14);
	put_text(TEXTS, "/home/build/dict/dict0dict.c", 29);
	add_waiter(1, EVENT(1) + 56 + 40);
}

static void test_latches(void)
{
	static const struct {
		int64_t word;
		bool found, owned;
		uint32_t readers;
		const char *mode;
	} words[] = {
		{0, true, true, 0, "exclusive"},
		{-0x100000, true, true, 0, "exclusive"}, // a second time
		{-0x200000, true, true, 0, "exclusive"},
		{0x100000, true, false, 0, NULL}, // free
		{0x100000 - 3, true, false, 3, NULL},
		{-2, true, false, 2, "wait exclusive"},
		{0x100001, false, false, 0, NULL},
		{INT64_MAX, false, false, 0, NULL},
		{INT64_MIN, false, false, 0, NULL},
	};

	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
		begin_sync(words[i].word, 351);
		CHECK_OK(stall_sync_cells_find(&memory));
		CHECK_INT(found[1].found, words[i].found);
		if (!words[i].found)
			continue;
		CHECK_INT(found[1].kind, STALL_LOCK_RWLOCK);
		CHECK_INT(found[1].owner, words[i].owned ? 3 : STALL_NO_THREAD);
		CHECK_INT(found[1].readers, words[i].readers);
		CHECK(found[1].mode == words[i].mode ||
		      (found[1].mode && words[i].mode && !strcmp(found[1].mode, words[i].mode)));
		CHECK_STRING(found[1].created, "dict0dict.c:1684");
	}

	// A writer is not known while the flag is not set, nor one that is no thread.
	begin_sync(0, 351);
	put(LATCH + 16, 0);
	CHECK_OK(stall_sync_cells_find(&memory));
	CHECK(found[1].found);
	CHECK_INT(found[1].owner, STALL_NO_THREAD);
	begin_sync(0, 351);
	put(LATCH + 24, 0x1234000);
	CHECK_OK(stall_sync_cells_find(&memory));
	CHECK_INT(found[1].owner, STALL_NO_THREAD);

	// The cell is of another latch than the thread sleeps on.
	begin_sync(0, 351);
	waiters[0].pair = EVENT(3) + 56 + 40;
	CHECK_OK(stall_sync_cells_find(&memory));
	CHECK(!found[1].found);

	// Counts and pointers that lead nowhere.
	begin_sync(0, 351);
	put(ARRAY, UINT64_MAX);
	put(ARRAY + 8, UINT64_MAX);
	CHECK_OK(stall_sync_cells_find(&memory));
	CHECK(found[1].found);
	begin_sync(0, 351);
	put(CELLS + 80, BASE + IMAGE - 8);
	CHECK_OK(stall_sync_cells_find(&memory));
	CHECK(!found[1].found);

	// The latch changes hands between its two reads.
	begin_sync(0, 351);
	change_at = 2;
	change_address = LATCH + 24;
	change_value = PTHREAD(4);
	CHECK_OK(stall_sync_cells_find(&memory));
	CHECK(found[1].doubtful);
	change_at = 0;
}

static void test_sx_latches(void)
{
	static const struct {
		int64_t word;
		bool owned;
		uint32_t readers;
	} words[] = {
		{0x20000000, false, 0}, {0x20000000 - 5, false, 5},
		{0x10000000, true, 0},	{0x10000000 - 2, true, 2},
		{0, true, 0},		{-4, false, 4},
		{-0x10000000, true, 0}, {-0x10000000 - 3, false, 3},
		{-0x20000000, true, 0},
	};

	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
		begin_sync(words[i].word, 5);
		CHECK_OK(stall_layout_add(&layout, "rw_lock.x_decrement=0x20000000 "
						   "rw_lock.sx_decrement=0x10000000"));
		CHECK_OK(stall_sync_cells_find(&memory));
		CHECK(found[1].found);
		CHECK_INT(found[1].owner, words[i].owned ? 3 : STALL_NO_THREAD);
		CHECK_INT(found[1].readers, words[i].readers);
	}

	// The one reader is named where the latch keeps all of them in one word.
	begin_sync(0x20000000 - 1, 5);
	CHECK_OK(stall_layout_add(&layout, "rw_lock.x_decrement=0x20000000 "
					   "rw_lock.sx_decrement=0x10000000 "
					   "rw_lock_struct.reader_thread=48"));
	put(LATCH + 48, PTHREAD(4));
	CHECK_OK(stall_sync_cells_find(&memory));
	CHECK_INT(found[1].owner, 4);
}

static void test_mutexes(void)
{
	begin_sync(0, 354);
	put(LATCH, EVENT(1));
	put(LATCH + 40, TEXTS);
	put(LATCH + 48, 99);
	CHECK_OK(stall_sync_cells_find(&memory));
	CHECK(found[1].found);
	CHECK_INT(found[1].kind, STALL_LOCK_INTERNAL);
	CHECK_INT(found[1].owner, STALL_NO_THREAD);
	CHECK_STRING(found[1].created, "dict0dict.c:99");
}

/* Latches of MariaDB 10.6 and later. */

static const char sux[] = "ssux_lock_impl<true>.writer=0 ssux_lock_impl<true>.readers=4 "
			  "sux_lock<ssux_lock_impl<true>>.lock=0 "
			  "sux_lock<ssux_lock_impl<true>>.recursive=8 "
			  "sux_lock<ssux_lock_impl<true>>.writer=16";

static void look_at_sux(const char *caller, const char *helper, uint32_t offset, uint32_t recursive,
			uint64_t writer)
{
	static struct stall_frame frames[3];
	static uint32_t order[] = {0, 1, 2};
	struct stall_stack stacks[THREADS] = {[1] = {.frames = order, .count = 3}};
	const struct stall_unwound unwound = {.frames = frames, .stacks = stacks};
	struct stall_lock lock = {.address = LATCH + offset,
				  .futex = LATCH + offset,
				  .kind = STALL_LOCK_UNKNOWN};
	uint32_t thread_lock[THREADS] = {UINT32_MAX, 0, UINT32_MAX, UINT32_MAX, UINT32_MAX};
	const struct stall_locks locks = {.locks = &lock, .count = 1, .thread_lock = thread_lock};
	struct stall_futex futex = {.address = LATCH + offset, .readable = true};
	const uint32_t readers = 1u << 31 | 2;

	begin(sux);
	frames[0].symbol = "syscall";
	frames[1].symbol = helper;
	frames[2].symbol = caller;
	uint8_t *latch = futex.bytes + STALL_FUTEX_BEFORE - offset;
	memcpy(latch + 4, &readers, 4);
	memcpy(latch + 8, &recursive, 4);
	memcpy(latch + 16, &writer, 8);
	snapshot.futexes = &futex;
	snapshot.futex_count = 1;
	stall_sux_locks_find(&memory, &unwound, &locks);
	snapshot.futexes = NULL;
	snapshot.futex_count = 0;
}

static void test_sux(void)
{
	static const char wait[] = "srw_mutex_impl<true>::wait_and_lock()";

	look_at_sux("buf_page_get_gen(page_id_t)", wait, 0, 1, PTHREAD(3));
	CHECK_INT(found[1].owner, 3);
	CHECK_INT(found[1].address, LATCH);
	CHECK_STRING(found[1].mode, "exclusive");
	look_at_sux("ssux_lock::psi_u_lock(char const*, unsigned int)", wait, 0, 0x10000,
		    PTHREAD(3));
	CHECK_INT(found[1].owner, 3);
	CHECK_STRING(found[1].mode, "SX");
	look_at_sux("buf_page_get_gen(page_id_t)", wait, 0, 1, UINT64_MAX);
	CHECK(found[1].found);
	CHECK_INT(found[1].owner, STALL_NO_THREAD);
	CHECK_STRING(found[1].mode, "for I/O");
	// The next writer waits for readers, on the second word.
	look_at_sux("void mtr_t::page_lock()", "ssux_lock_impl<true>::wr_wait(unsigned int)", 4, 0,
		    0);
	CHECK(found[1].found);
	CHECK_INT(found[1].address, LATCH);
	CHECK_INT(found[1].readers, 2);
	CHECK_INT(found[1].owner, STALL_NO_THREAD);

	// Words of other latches, and what does not fit together.
	look_at_sux("trx_t::commit()", wait, 0, 1, PTHREAD(3));
	CHECK(!found[1].found);
	look_at_sux("buf_page_get_gen(page_id_t)", "start", 0, 1, PTHREAD(3));
	CHECK(!found[1].found);
	look_at_sux("buf_page_get_gen(page_id_t)", wait, 0, 1, 0x7123000);
	CHECK(!found[1].found);
	look_at_sux("buf_page_get_gen(page_id_t)", wait, 0, 0, PTHREAD(3));
	CHECK(!found[1].found);
	look_at_sux("buf_page_get_gen(page_id_t)", wait, 0, 7, 0);
	CHECK(!found[1].found);
	look_at_sux(NULL, wait, 0, 1, PTHREAD(3));
	CHECK(!found[1].found);
}

/* Images of which nothing is right. */

static void fill_at_random(void)
{
	for (size_t at = 0; at + 8 <= IMAGE; at += 8) {
		uint64_t value;
		switch (random() % 6) {
		case 0:
			value = PTHREAD(random() % THREADS);
			break;
		case 1:
			value = (uint64_t)random() % 512;
			break;
		case 2:
			value = (uint64_t)random() << 33 ^ (uint64_t)random();
			break;
		default:
			value = BASE + (uint64_t)random() % (IMAGE / 8) * 8;
			break;
		}
		put(BASE + at, value);
	}
}

static void test_random_images(int rounds)
{
	static const char *const texts[] = {mdl, row, old_row, sync_55};

	for (int round = 0; round < rounds; round++) {
		begin(texts[round % 4]);
		fill_at_random();
		for (int i = 0; i < STALL_SERVER_GLOBALS; i++)
			globals[i] = (struct stall_server_global){BASE + (uint64_t)random() %
										  (IMAGE / 8) * 8,
								  8};
		for (uint32_t i = 0; i < THREADS; i++)
			add_waiter(i, BASE + (uint64_t)random() % IMAGE);
		CHECK_OK(stall_metadata_locks_find(&memory));
		CHECK_OK(stall_row_locks_find(&memory));
		CHECK_OK(stall_sync_cells_find(&memory));
		for (int i = 0; i < THREADS; i++)
			CHECK(!found[i].found || found[i].owner == STALL_NO_THREAD ||
			      found[i].owner < THREADS);
	}
}

/* Layouts by version. */

static void check_form(const char *text, bool right)
{
	struct stall_error *err = stall_memory_layouts_check(text);

	if (!err != right)
		fprintf(stderr, "%s\n", text);
	CHECK_INT(!err, right);
	stall_error_destroy(err);
}

static void test_versions(void)
{
	check_form("mysql 5.5.9 5.5.62 rw_lock.x=1 y=0x10", true);
	check_form("mariadb 10.6.0 11.8.999 ", true);
	check_form("mariadb 10.6.0 11.8.999", true);
	check_form("mysql 5.5 5.5.62 x=1", false);
	check_form("mysql 5.5.9 5.5.1000 x=1", false);
	check_form("mysql 5.5.9 5.5.62x=1", false);
	check_form("mysql 5.5.9 5.5.62 x", false);
	check_form("postgres 17.0.0 17.0.1 x=1", false);
	check_form("", false);
}

#define MANY_THREADS 16384

// Each structure's own address is 8 times the number of its thread.
static size_t read_number(void *arg, uint32_t process, uint64_t address, void *buf, size_t size)
{
	uint32_t number = (uint32_t)(address / 8);

	memcpy(buf, &number, sizeof(number));
	return size;
}

// The CPU time to find the threads of so many structures, among as many.
static uint64_t cost_of(size_t count)
{
	static const struct stall_thds none;
	const struct stall_snapshot of = {
		.memory = {.read = read_number},
		.threads = calloc(count, sizeof(*of.threads)),
		.thread_count = count,
	};
	uint64_t *addresses = calloc(count, sizeof(*addresses)), least = UINT64_MAX;
	uint32_t *threads_found = calloc(count, sizeof(*threads_found));

	for (size_t i = 0; i < count; i++) {
		of.threads[i].tid = (pid_t)i + 1;
		addresses[i] = (i + 1) * 8;
	}
	for (int i = 0; i < 3; i++) {
		struct stall_thread_numbers numbers_of = {};
		const struct stall_server_memory server = {.snapshot = &of,
							   .layout = &layout,
							   .thds = &none,
							   .numbers = &numbers_of};
		uint64_t before = stall_clock_ns(CLOCK_THREAD_CPUTIME_ID);

		CHECK_OK(stall_thread_numbers_init(&numbers_of, &of, 0));
		CHECK_OK(stall_server_threads_of_thds(&server, addresses, count, threads_found));
		uint64_t cost = stall_clock_ns(CLOCK_THREAD_CPUTIME_ID) - before;
		CHECK_INT(threads_found[count - 1], count - 1);
		stall_thread_numbers_deinit(&numbers_of);
		least = cost < least ? cost : least;
	}
	free(of.threads);
	free(addresses);
	free(threads_found);
	return least;
}

// Eight times as many cost eight times as much, or a little more, and not 64 times.
static void test_many_threads(void)
{
	begin("THD.os_thread_id=0");
	CHECK(cost_of(MANY_THREADS) < 24 * cost_of(MANY_THREADS / 8));
}

int main(int argc, char **argv)
{
	srandom((unsigned int)check_seed(argc, argv));
	test_metadata();
	test_metadata_holders();
	test_fields();
	test_hostile_metadata();
	test_changing_metadata();
	test_known_thds();
	test_ring();
	test_counted();
	test_rows();
	test_hostile_rows();
	test_old_rows();
	test_latches();
	test_sx_latches();
	test_mutexes();
	test_sux();
	test_random_images(argc > 1 ? 2000 : 40);
	test_versions();
	test_many_threads();
	stall_thds_deinit(&thds);
	stall_thread_numbers_deinit(&numbers);
	stall_layout_deinit(&layout);
	return check_done();
}
