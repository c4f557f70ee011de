// SPDX-License-Identifier: Apache-2.0
// What a futex word is, by the frames of who waits on it and by the words around it. The process
// that is examined is this one.
#include <linux/futex.h>
#include <pthread.h>
#include <unistd.h>

#include "base/arena.h"
#include "check.h"
#include "waits/wait_roles.h"

#define MAX_NAMES 8

static struct stall_wait_processes processes;
static struct stall_arena arena;

// Frames, innermost first. With a name of C++ in mangled form, its symbol is what follows the space.
static void make_stack(const char *const *names, struct stall_unwound *unwound,
		       struct stall_stack *stack)
{
	static struct stall_frame frames[MAX_NAMES];
	static uint32_t indexes[MAX_NAMES];
	static char linkage[MAX_NAMES][256];

	*stack = (struct stall_stack){.frames = indexes};
	*unwound = (struct stall_unwound){.frames = frames};
	for (; names[stack->count]; stack->count++) {
		uint32_t i = stack->count;
		const char *space = strchr(names[i], ' ');

		indexes[i] = i;
		// libc's frames are in module 0, all others in the program.
		frames[i] = (struct stall_frame){.symbol = names[i], .module = i < 2 ? 0 : 1};
		if (space) {
			snprintf(linkage[i], sizeof(linkage[i]), "%.*s", (int)(space - names[i]),
				 names[i]);
			frames[i].linkage = linkage[i];
			frames[i].symbol = space + 1;
		}
	}
	unwound->frame_count = stack->count;
}

static struct stall_wait_identity identify(const void *word, uint32_t operation, uint32_t value,
					   const char *const *names)
{
	const struct stall_wait_record record = {
		.type = STALL_RECORD_IN_FLIGHT,
		.operation = operation,
		.key = {.tgid = getpid(), .kind = STALL_WAIT_FUTEX, .id = (uintptr_t)word},
		.value = value,
	};
	const struct stall_lock_wait wait = stall_wait_of_record(&record, 0);
	struct stall_wait_identity identity = {};
	struct stall_unwound unwound;
	struct stall_stack stack;
	struct stall_futex futex;

	make_stack(names, &unwound, &stack);
	CHECK(stall_wait_read_word(&processes.processes[0], record.key.id, &futex));
	stall_wait_identify(&unwound, &stack, &wait, &futex, &processes.processes[0], &identity);
	return identity;
}
#define NAMES(...) ((const char *const[]){__VA_ARGS__, NULL})

static void test_libc(void)
{
	static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
	static pthread_rwlock_t rwlock = PTHREAD_RWLOCK_INITIALIZER;
	static pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
	struct stall_wait_identity found;

	pthread_mutex_lock(&mutex);
	found = identify(&mutex, FUTEX_WAIT_PRIVATE, 2,
			 NAMES("__lll_lock_wait", "pthread_mutex_lock", "work"));
	CHECK_INT(found.role, STALL_ROLE_MUTEX);
	CHECK(found.has_owner);
	CHECK_INT(found.owner_tid, getpid());
	CHECK_INT(found.object, (uintptr_t)&mutex);
	pthread_mutex_unlock(&mutex);
	CHECK_INT(stall_wait_owner(&processes.processes[0], &found.wait, found.name, NULL), 0);

	pthread_rwlock_wrlock(&rwlock);
	found = identify((char *)&rwlock + 8, FUTEX_WAIT_BITSET_PRIVATE, 3,
			 NAMES("__futex_abstimed_wait_common", "pthread_rwlock_rdlock", "work"));
	CHECK_INT(found.role, STALL_ROLE_RWLOCK);
	CHECK_INT(found.object, (uintptr_t)&rwlock);
	CHECK_INT(found.owner_tid, getpid());
	pthread_rwlock_unlock(&rwlock);

	found = identify((char *)&cond + 40, FUTEX_WAIT_BITSET_PRIVATE, 0,
			 NAMES("__futex_abstimed_wait_common", "pthread_cond_wait", "handle_jobs"));
	CHECK_INT(found.role, STALL_ROLE_COND);
	CHECK(!found.has_owner);

	found = identify(&cond, FUTEX_WAIT_BITSET, 0, NAMES("do_futex_wait", "sem_wait", "work"));
	CHECK_INT(found.role, STALL_ROLE_SEM);
	found = identify(&cond, FUTEX_WAIT_BITSET, 0,
			 NAMES("__futex_abstimed_wait_common", "pthread_join", "main"));
	CHECK_INT(found.role, STALL_ROLE_JOIN);
	found = identify(&cond, FUTEX_WAIT_PRIVATE, 2,
			 NAMES("__lll_lock_wait_private", "_int_free", "work"));
	CHECK_INT(found.role, STALL_ROLE_MUTEX); // of an arena of malloc's
	CHECK(!found.has_owner);
}

// A futex of the program's own, and nothing around it that looks like a lock.
static void test_unknown(void)
{
	static uint32_t words[32];

	struct stall_wait_identity found =
		identify(&words[16], FUTEX_WAIT_PRIVATE, 0, NAMES("my_wait", "my_lock", "main"));
	CHECK_INT(found.role, STALL_ROLE_UNKNOWN);
	CHECK_INT(found.object, (uintptr_t)&words[16]);
}

// Servers' own locks sleep on conditions; their wait functions show it.
static void test_servers(void)
{
	static pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
	static const struct {
		const char *names[MAX_NAMES];
		enum stall_wait_role role;
	} waits[] = {
		{{"__futex_abstimed_wait_common", "pthread_cond_wait", "os_event_wait_low",
		  "sync_array_wait_event", "mutex_spin_wait", "mutex_enter_func"},
		 STALL_ROLE_MUTEX},
		{{"__futex_abstimed_wait_common", "pthread_cond_wait", "os_event_wait_low",
		  "sync_array_wait_event", "rw_lock_s_lock_spin", "buf_page_get_gen"},
		 STALL_ROLE_RWLOCK},
		{{"__futex_abstimed_wait_common", "pthread_cond_wait", "os_event_wait_low",
		  "srv_suspend_mysql_thread", "row_mysql_handle_errors"},
		 STALL_ROLE_ROW_LOCK},
		{{"__futex_abstimed_wait_common", "pthread_cond_timedwait",
		  "_Z24lock_wait_suspend_threadP9que_thr_t.part.0 lock_wait_suspend_thread("
		  "que_thr_t*)"},
		 STALL_ROLE_ROW_LOCK},
		{{"__futex_abstimed_wait_common", "pthread_cond_timedwait",
		  "_ZN8MDL_wait10timed_waitEP18MDL_context_ownerP8timespecbPK13PSI_stage_info "
		  "MDL_wait::timed_wait(MDL_context_owner*, timespec*, bool, PSI_stage_info "
		  "const*)"},
		 STALL_ROLE_METADATA_LOCK},
		// Threads that wait for work.
		{{"__futex_abstimed_wait_common", "pthread_cond_wait", "os_event_wait_low",
		  "srv_master_thread", "start_thread"},
		 STALL_ROLE_COND},
		{{"__futex_abstimed_wait_common", "pthread_cond_wait", "handle_slave_io"},
		 STALL_ROLE_COND},
	};

	for (size_t i = 0; i < sizeof(waits) / sizeof(waits[0]); i++)
		CHECK_INT(identify((char *)&cond + 40, FUTEX_WAIT_BITSET_PRIVATE, 0, waits[i].names)
				  .role,
			  waits[i].role);
}

// The mutex of a table of locks is a mutex, wherever it is waited for.
static void test_mutex_in_wait_function(void)
{
	static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

	pthread_mutex_lock(&mutex);
	struct stall_wait_identity found = identify(&mutex, FUTEX_WAIT_PRIVATE, 2,
						    NAMES("__lll_lock_wait", "pthread_mutex_lock",
							  "srv_suspend_mysql_thread"));
	CHECK_INT(found.role, STALL_ROLE_MUTEX);
	CHECK_INT(found.owner_tid, getpid());
	pthread_mutex_unlock(&mutex);
}

static void test_function_names(void)
{
	static char longest[4096];

	CHECK_INT(stall_wait_role_of_function("sync_array_wait_event"), STALL_ROLE_MUTEX);
	CHECK_INT(stall_wait_role_of_function("srv_suspend_mysql_thread.constprop.0"),
		  STALL_ROLE_ROW_LOCK);
	CHECK_INT(stall_wait_role_of_function("srv_suspend_mysql_threads"), STALL_ROLE_UNKNOWN);
	// MySQL 5.5 and 9.7, MariaDB 10.11.
	CHECK_INT(stall_wait_role_of_function("log_write_up_to"), STALL_ROLE_COMMIT);
	CHECK_INT(stall_wait_role_of_function("_Z15log_write_up_toR5log_tmb"), STALL_ROLE_COMMIT);
	CHECK_INT(stall_wait_role_of_function("_ZN20Commit_stage_manager10enroll_forENS_7StageIDE"
					      "P3THDP13mysql_mutex_tS4_"),
		  STALL_ROLE_COMMIT);
	CHECK_INT(stall_wait_role_of_function("_ZN13MYSQL_BIN_LOG22queue_for_group_commitEPNS_18"
					      "group_commit_entryE"),
		  STALL_ROLE_COMMIT);
	CHECK_INT(stall_wait_role_of_function(
			  "_ZN15wait_for_commit22wait_for_prior_commit2EP3THDb"),
		  STALL_ROLE_COMMIT);
	CHECK_INT(stall_wait_role_of_function("_ZN15wait_for_commit33unregister_wait_for_prior_"
					      "commit2Ev"),
		  STALL_ROLE_UNKNOWN);
	CHECK_INT(stall_wait_role_of_function(""), STALL_ROLE_UNKNOWN);
	memset(longest, 's', sizeof(longest) - 1);
	CHECK_INT(stall_wait_role_of_function(longest), STALL_ROLE_UNKNOWN);
}

static void test_unreadable(void)
{
	struct stall_futex futex;

	CHECK(!stall_wait_read_word(&processes.processes[0], 0, &futex));
	CHECK(!stall_wait_read_word(&processes.processes[0], 4096, &futex));
	CHECK(!stall_wait_read_word(&processes.processes[0], UINT64_MAX, &futex));
}

static void test_processes(void)
{
	struct stall_error *err = stall_wait_processes_add(&processes, &arena, getpid());

	CHECK(err != NULL); // it is watched already
	stall_error_destroy(err);
	err = stall_wait_processes_add(&processes, &arena, 1 << 22); // above any pid
	CHECK(err && err->code == STALL_ERROR_NO_PROCESS);
	stall_error_destroy(err);
	CHECK_INT(processes.count, 1);
	CHECK_INT(stall_wait_process_tid(&processes.processes[0], getpid()), getpid());
	CHECK_INT(stall_wait_process_tid(&processes.processes[0], 1), 0); // another process
	CHECK_INT(stall_wait_process_tid(&processes.processes[0], -5), 0);
	CHECK(processes.processes[0].comm[0]);
	stall_wait_process_end(&processes, &processes.processes[0]);
	CHECK(!stall_wait_processes_find(&processes, getpid()));
	CHECK_INT(processes.alive, 0);
	CHECK_OK(
		stall_wait_processes_add(&processes, &arena, getpid())); // the number is used again
	CHECK_INT(processes.count, 2);
}

int main(void)
{
	CHECK_OK(stall_arena_init(&arena, 1 << 20));
	CHECK_OK(stall_wait_processes_add(&processes, &arena, getpid()));
	test_libc();
	test_unknown();
	test_servers();
	test_mutex_in_wait_function();
	test_function_names();
	test_unreadable();
	test_processes();
	stall_wait_processes_deinit(&processes);
	stall_arena_deinit(&arena);
	return check_done();
}
