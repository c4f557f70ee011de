// SPDX-License-Identifier: Apache-2.0
// frames MODULE: one thread for each shape of stack that unwinders get wrong. MODULE is the shared
// object that is loaded with dlopen.
#include "waits.h"

#include <alloca.h>
#include <dlfcn.h>

#include "module.h"

static int parked_tid; // of the thread that is being started

// Every stack ends here.
static NOIPA void park(void)
{
	__atomic_store_n(&parked_tid, gettid(), __ATOMIC_RELEASE);
	for (;;) {
		pause();
		KEEP_FRAME();
	}
}

// A handler that blocks: the frames below it are those of the interrupted code.
static NOIPA void on_signal(int signal)
{
	(void)signal;
	park();
	KEEP_FRAME();
}

static NOIPA void signal_raise(void)
{
	raise(SIGUSR1);
	KEEP_FRAME();
}

static NOIPA void *shape_signal(void *arg)
{
	(void)arg;
	signal(SIGUSR1, on_signal);
	signal_raise();
	return NULL;
}

// Interrupted at its very first instruction: the address before it is of another function.
NOIPA void signal_first(void);
__asm__(".text\n\t.type signal_first, @function\nsignal_first:\n\t.cfi_startproc\n\t"
	"ud2\n\tret\n\t.cfi_endproc\n\t.size signal_first, . - signal_first\n");

static NOIPA void *shape_fault(void *arg)
{
	(void)arg;
	signal(SIGILL, on_signal);
	signal_first();
	KEEP_FRAME();
	return NULL;
}

static NOIPA void on_alternate(int signal)
{
	(void)signal;
	park();
	KEEP_FRAME();
}

static NOIPA void *shape_sigaltstack(void *arg)
{
	struct sigaction action = {.sa_handler = on_alternate, .sa_flags = SA_ONSTACK};
	stack_t stack = {.ss_size = 65536, .ss_sp = arg};

	if (sigaltstack(&stack, NULL))
		target_die("sigaltstack");
	sigaction(SIGUSR2, &action, NULL);
	raise(SIGUSR2);
	KEEP_FRAME();
	return NULL;
}

static NOIPA void alloca_frame(size_t size)
{
	char *room = alloca(size);

	__asm__ volatile("" : : "r"(room) : "memory");
	park();
	__asm__ volatile("" : : "r"(room) : "memory");
}

static NOIPA void *shape_alloca(void *arg)
{
	alloca_frame((size_t)(uintptr_t)arg);
	KEEP_FRAME();
	return NULL;
}

static NOIPA void vla_frame(size_t size)
{
	char room[size];

	__asm__ volatile("" : : "r"(room) : "memory");
	park();
	__asm__ volatile("" : : "r"(room) : "memory");
}

static NOIPA void *shape_vla(void *arg)
{
	vla_frame((size_t)(uintptr_t)arg);
	KEEP_FRAME();
	return NULL;
}

// A realigned stack: its CFA is an expression, not a register and an offset.
static NOIPA void aligned_frame(size_t size)
{
	volatile char room[64] __attribute__((aligned(64)));
	char *more = alloca(size);

	room[0] = 1;
	__asm__ volatile("" : : "r"(more), "r"(room) : "memory");
	park();
	KEEP_FRAME();
}

static NOIPA void *shape_aligned(void *arg)
{
	aligned_frame((size_t)(uintptr_t)arg);
	KEEP_FRAME();
	return NULL;
}

static NOIPA void large_frame(void)
{
	volatile char room[65536];

	room[0] = room[sizeof(room) - 1] = 1;
	park();
	KEEP_FRAME();
}

static NOIPA void *shape_large(void *arg)
{
	(void)arg;
	large_frame();
	KEEP_FRAME();
	return NULL;
}

static NOIPA int compare(const void *a, const void *b)
{
	park();
	return *(const char *)a - *(const char *)b;
}

static NOIPA void sort(void)
{
	char letters[] = "stallscope";

	qsort(letters, sizeof(letters) - 1, 1, compare);
	KEEP_FRAME();
}

// libc's frames stand between the program's.
static NOIPA void *shape_callback(void *arg)
{
	(void)arg;
	sort();
	KEEP_FRAME();
	return NULL;
}

static NOIPA void ifunc_chosen(void)
{
	park();
	KEEP_FRAME();
}

static void (*ifunc_resolve(void))(void)
{
	return ifunc_chosen;
}
void ifunc_call(void) __attribute__((ifunc("ifunc_resolve")));

static NOIPA void *shape_ifunc(void *arg)
{
	(void)arg;
	ifunc_call();
	KEEP_FRAME();
	return NULL;
}

static NOIPA void __attribute__((noreturn)) never_returns(void)
{
	for (;;)
		park();
}

// The call is the last instruction: its return address belongs to the next function.
static NOIPA void __attribute__((noreturn)) ends_with_call(void)
{
	never_returns();
}

static NOIPA __attribute__((used)) int wrong_neighbour(int value)
{
	return value + 1;
}

static NOIPA void *shape_noreturn(void *arg)
{
	(void)arg;
	ends_with_call();
}

static void (*module_through)(void (*back)(void));

static NOIPA void called_back(void)
{
	park();
	KEEP_FRAME();
}

static NOIPA void *shape_module(void *arg)
{
	(void)arg;
	module_through(called_back);
	KEEP_FRAME();
	return NULL;
}

// The parent of a vfork sleeps in state D until the child ends, without a futex.
static NOIPA void vfork_parent(void)
{
	int fds[2];

	if (pipe2(fds, O_CLOEXEC))
		target_die("pipe2");
	__atomic_store_n(&parked_tid, gettid(), __ATOMIC_RELEASE);
	if (vfork() == 0) {
		long got;
		char c;

		// Shares the stack with its parent: no calls. Ends with its parent, however early that
		// is killed: nobody else has the other end of the pipe.
		__asm__ volatile("syscall"
				 : "=a"(got)
				 : "a"(SYS_close), "D"(fds[1])
				 : "rcx", "r11", "memory");
		__asm__ volatile("syscall"
				 : "=a"(got)
				 : "a"(SYS_read), "D"(fds[0]), "S"(&c), "d"(1)
				 : "rcx", "r11", "memory");
		_exit(0);
	}
	KEEP_FRAME();
}

static NOIPA void *shape_vfork(void *arg)
{
	(void)arg;
	vfork_parent();
	KEEP_FRAME();
	return NULL;
}

// The parent of a child in its own memory, that has a stack of its own: posix_spawn does it so.
static int spawn_pipe[2];

static NOIPA __attribute__((used)) void spawned(void)
{
	char c;

	close(spawn_pipe[1]);
	_exit(read(spawn_pipe[0], &c, 1) != 0);
}

// The C library's clone has no caller by its unwind information.
static NOIPA void spawn_parent(char *top)
{
	if (pipe2(spawn_pipe, O_CLOEXEC))
		target_die("pipe2");
	__atomic_store_n(&parked_tid, gettid(), __ATOMIC_RELEASE);
	long child;
	__asm__ volatile("syscall\n\t"
			 "testq %%rax, %%rax\n\t"
			 "jnz 1f\n\t"
			 "call spawned\n"
			 "1:"
			 : "=a"(child)
			 : "a"(SYS_clone), "D"(CLONE_VM | CLONE_VFORK | SIGCHLD), "S"(top), "d"(0)
			 : "rcx", "r11", "memory");
	KEEP_FRAME();
}

static NOIPA void *shape_spawn(void *arg)
{
	(void)arg;
	spawn_parent((char *)malloc(65536) + 65536);
	KEEP_FRAME();
	return NULL;
}

// A stack that ends in a return address of 0, as some coroutines' do.
NOIPA void enter(void (*function)(void), char *top);
__asm__(".text\n\t.type enter, @function\nenter:\n\t.cfi_startproc\n\t.cfi_undefined 16\n\t"
	"movq %rsi, %rsp\n\tpushq $0\n\tjmp *%rdi\n\t.cfi_endproc\n\t.size enter, . - enter\n");

static NOIPA void zero_ended(void)
{
	volatile char room[8192];

	room[0] = room[sizeof(room) - 1] = 1;
	park();
	KEEP_FRAME();
}

static NOIPA void *shape_zero(void *arg)
{
	(void)arg;
	enter(zero_ended, (char *)malloc(65536) + 65536);
	return NULL;
}

static NOIPA void recurse(unsigned int left)
{
	if (left)
		recurse(left - 1);
	else
		park();
	KEEP_FRAME();
}

static NOIPA void *shape_recursion(void *arg)
{
	recurse((unsigned int)(uintptr_t)arg);
	KEEP_FRAME();
	return NULL;
}

static const struct {
	const char *name;
	void *(*main)(void *);
	uintptr_t arg;
	long syscall;
	const char *frames; // of the program and its module, innermost first
} shapes[] = {
	{"signal", shape_signal, 0, SYS_pause,
	 "\"park\",\"on_signal\",\"signal_raise\",\"shape_signal\""},
	{"fault", shape_fault, 0, SYS_pause,
	 "\"park\",\"on_signal\",\"signal_first\",\"shape_fault\""},
	{"sigaltstack", shape_sigaltstack, 0, SYS_pause,
	 "\"park\",\"on_alternate\",\"shape_sigaltstack\""},
	{"alloca", shape_alloca, 3000, SYS_pause, "\"park\",\"alloca_frame\",\"shape_alloca\""},
	{"vla", shape_vla, 5000, SYS_pause, "\"park\",\"vla_frame\",\"shape_vla\""},
	{"aligned", shape_aligned, 100, SYS_pause, "\"park\",\"aligned_frame\",\"shape_aligned\""},
	{"large", shape_large, 0, SYS_pause, "\"park\",\"large_frame\",\"shape_large\""},
	{"callback", shape_callback, 0, SYS_pause,
	 "\"park\",\"compare\",\"sort\",\"shape_callback\""},
	{"ifunc", shape_ifunc, 0, SYS_pause, "\"park\",\"ifunc_chosen\",\"shape_ifunc\""},
	{"noreturn", shape_noreturn, 0, SYS_pause,
	 "\"park\",\"never_returns\",\"ends_with_call\",\"shape_noreturn\""},
	{"module", shape_module, 0, SYS_pause,
	 "\"park\",\"called_back\",\"module_hidden\",\"module_exported\",\"shape_module\""},
	{"vfork", shape_vfork, 0, SYS_vfork, "\"vfork_parent\",\"shape_vfork\""},
	{"spawn", shape_spawn, 0, SYS_clone, "\"spawn_parent\",\"shape_spawn\""},
	{"zero", shape_zero, 0, SYS_pause, "\"park\",\"zero_ended\""},
	{"recursion", shape_recursion, 200, SYS_pause, NULL},
};

int main(int argc, char **argv)
{
	int tids[sizeof(shapes) / sizeof(shapes[0])];
	size_t count = sizeof(shapes) / sizeof(shapes[0]);
	char *alternate = malloc(65536);
	void *module = argc > 1 ? dlopen(argv[1], RTLD_NOW) : NULL;

	if (!module) {
		fprintf(stderr, "usage: frames MODULE: %s\n", argc > 1 ? dlerror() : "missing");
		return 2;
	}
	module_through = (void (*)(void (*)(void)))dlsym(module, "module_exported");
	if (!module_through || !alternate)
		target_die("dlsym");
	for (size_t i = 0; i < count; i++) {
		void *arg = shapes[i].main == shape_sigaltstack ? (void *)alternate
								: (void *)shapes[i].arg;

		__atomic_store_n(&parked_tid, 0, __ATOMIC_RELEASE);
		pthread_detach(target_thread(shapes[i].main, arg, 1 << 20));
		tids[i] = target_wait_set(&parked_tid);
		target_wait_blocked(tids[i], shapes[i].syscall, 0, 0);
		printf("{\"fact\":\"thread\",\"tid\":%d,\"wait\":\"%s\",\"syscall\":%ld,"
		       "\"frames\":[",
		       tids[i], shapes[i].name, shapes[i].syscall);
		if (shapes[i].frames) {
			printf("%s", shapes[i].frames);
		} else {
			printf("\"park\"");
			for (uintptr_t left = 0; left <= shapes[i].arg; left++)
				printf(",\"recurse\"");
			printf(",\"shape_recursion\"");
		}
		printf("]}\n");
	}
	target_ready();
	target_serve(NULL);
}
