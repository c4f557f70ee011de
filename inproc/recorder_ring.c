// SPDX-License-Identifier: Apache-2.0
#include "inproc/recorder_ring.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include "inproc/recorder_file.h"
#include "inproc/recorder_settings.h"

#define LINKS_OF_ONE_THREAD 3 // of /proc/self/task: one is that of the thread

enum state {
	NONE,
	MAKING,
	READY,
	FAILED,
};
static uint32_t state;
static struct recorder_ring the_ring;
struct recorder_ring *recorder_ready_ring;

// strerror(3) may allocate.
static const char *error_text(int errnum)
{
	switch (errnum) {
	case EACCES:
	case EPERM:
		return "not permitted; set STALLSCOPE_RUNTIME_DIR to a folder of the server's user";
	case ENOENT:
		return "no such folder; make it, or set STALLSCOPE_RUNTIME_DIR";
	case ENOTDIR:
		return "not a folder; set STALLSCOPE_RUNTIME_DIR to one";
	case EROFS:
		return "read-only; set STALLSCOPE_RUNTIME_DIR to another folder";
	case ENOSPC:
	case EDQUOT:
		return "no space left; set STALLSCOPE_RUNTIME_DIR to another folder";
	case EFBIG:
		return "the limit of file sizes is too small; raise it (ulimit -f)";
	case EMFILE:
	case ENFILE:
		return "too many open files";
	case ENOMEM:
		return "no memory left";
	}
	return "it does not work there; set STALLSCOPE_RUNTIME_DIR to a folder in memory";
}

static bool make(struct recorder_ring *ring)
{
	const struct recorder_settings *settings = recorder_settings();
	const char *what = "";

	if (settings->bad)
		recorder_print((const char *const[]){"the value of ", settings->bad,
						     " is not understood: the default is taken",
						     NULL});
	int errnum = recorder_create(ring, &what);
	if (!errnum)
		return true;
	recorder_print((const char *const[]){"nothing is recorded: cannot make the ring: ", what,
					     ": ", error_text(errnum), NULL});
	return false;
}

static void make_once(void)
{
	uint32_t none = NONE;

	if (!__atomic_compare_exchange_n(&state, &none, MAKING, false, __ATOMIC_ACQUIRE,
					 __ATOMIC_RELAXED))
		return;
	bool is_made = make(&the_ring);
	if (is_made)
		__atomic_store_n(&recorder_ready_ring, &the_ring, __ATOMIC_RELEASE);
	__atomic_store_n(&state, is_made ? READY : FAILED, __ATOMIC_RELEASE);
}

static struct recorder_ring *make_unless_made(void)
{
	if (__atomic_load_n(&state, __ATOMIC_RELAXED) == NONE && recorder_is_own_process()) {
		uint64_t blocked = recorder_block_signals();
		make_once();
		recorder_restore_signals(blocked);
	}
	return recorder_ring();
}

// Threads that did not come by pthread_create(), or before this library was loaded.
static bool has_other_threads(void)
{
	struct stat st;

	return !raw_call2(SYS_stat, "/proc/self/task", &st) && st.st_nlink > LINKS_OF_ONE_THREAD;
}

struct recorder_ring *recorder_ring_needed(void)
{
	struct recorder_ring *ring = recorder_ring();

	if (ring || __atomic_load_n(&recorder_state.has_threads, __ATOMIC_RELAXED) ||
	    __atomic_load_n(&state, __ATOMIC_RELAXED) != NONE || !recorder_is_own_process())
		return ring;
	if (has_other_threads()) {
		__atomic_store_n(&recorder_state.has_threads, 1, __ATOMIC_RELAXED);
		return NULL;
	}
	return make_unless_made();
}

struct recorder_ring *recorder_ring_before_threads(void)
{
	struct recorder_ring *ring = recorder_ring();

	return ring ? ring : make_unless_made();
}

void recorder_ring_forget(bool in_write)
{
	struct recorder_ring *ring = &the_ring;
	void *header = ring->header;
	uint64_t size = ring->layout.file_size;

	__atomic_store_n(&recorder_ready_ring, NULL, __ATOMIC_RELAXED);
	// A signal handler that forks may have interrupted a write: give it private memory to write
	// to.
	if (header && in_write)
		raw_call6(SYS_mmap, header, size, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
	else if (header)
		raw_call2(SYS_munmap, header, size);
	recorder_memory_forget();
	*ring = (struct recorder_ring){.generation = ring->generation + 1};
	// A child does not retry what failed in its parent.
	if (state != FAILED)
		state = NONE;
}

bool recorder_ring_failed(void)
{
	return __atomic_load_n(&state, __ATOMIC_RELAXED) == FAILED;
}
