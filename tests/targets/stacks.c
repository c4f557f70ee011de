// SPDX-License-Identifier: Apache-2.0
// stacks KIND N NANOSECONDS: N threads whose stacks lie in several places or are written to by others, and change
// all the time. Commands: `turns`.
//
//   signal     each chain ends in a signal's handler, which runs on a stack of its own
//   segments   each chain continues, from function to function, on a stack from the heap
//   coroutine  two coroutines a thread, each with a chain that continues on a third stack
//   vfork      children that run on their parents' stacks, and not only below what is in use
//   exit       threads end in the middle of a chain, and others get their stacks at once
#include "chains.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <ucontext.h>

#define STACK (128 * 1024)
#define GUARD 4096

static int tids[256];

// Its first page is a guard, as libraries of coroutines have it; without one, neighbours would be one
// mapping, of which a copy holds more than one stack.
static char *new_stack(void)
{
	char *stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (stack == MAP_FAILED || mprotect(stack, GUARD, PROT_NONE))
		target_die("mmap");
	return stack;
}

// Calls function(turn) on the stack that ends at `top`: what GCC's __morestack does, too.
NOIPA void call_on(unsigned long turn, void (*function)(unsigned long), char *top);
__asm__(".text\n\t.type call_on, @function\ncall_on:\n\t.cfi_startproc\n\t"
	"pushq %rbp\n\t.cfi_def_cfa_offset 16\n\t.cfi_offset 6, -16\n\t"
	"movq %rsp, %rbp\n\t.cfi_def_cfa_register 6\n\t"
	"movq %rdx, %rsp\n\t"
	"call *%rsi\n\t"
	"movq %rbp, %rsp\n\t"
	"popq %rbp\n\t.cfi_def_cfa 7, 8\n\t"
	"ret\n\t.cfi_endproc\n\t.size call_on, . - call_on\n");

static __thread char *second_top, *third_top;
static __thread ucontext_t scheduler;
static __thread ucontext_t *current; // the coroutine that runs

static enum { SIGNAL, SEGMENTS, COROUTINE, VFORK, EXIT } kind;
static const char *const kinds[] = {"signal", "segments", "coroutine", "vfork", "exit"};

static __thread unsigned long this_turn;

NOIPA void low_heads(unsigned long turn);
NOIPA void low_tails(unsigned long turn);

NOIPA void low_heads(unsigned long turn)
{
	chain_nap(turn);
	if (current)
		swapcontext(current, &scheduler);
	KEEP_FRAME();
}

NOIPA void low_tails(unsigned long turn)
{
	chain_nap(turn);
	if (current)
		swapcontext(current, &scheduler);
	KEEP_FRAME();
}

static NOIPA void on_heads(int number)
{
	(void)number;
	low_heads(this_turn);
	KEEP_FRAME();
}

static NOIPA void on_tails(int number)
{
	(void)number;
	low_tails(this_turn);
	KEEP_FRAME();
}

static NOIPA void middle_heads(unsigned long turn)
{
	call_on(turn, low_heads, third_top);
	KEEP_FRAME();
}

static NOIPA void middle_tails(unsigned long turn)
{
	call_on(turn, low_tails, third_top);
	KEEP_FRAME();
}

static NOIPA void end_thread(unsigned long turn)
{
	(void)turn;
	syscall(SYS_exit, 0);
	KEEP_FRAME();
}

CHAIN_OF(heads)
CHAIN_OF(tails)

NOIPA void heads_end(unsigned long turn)
{
	this_turn = turn;
	if (kind == SIGNAL)
		raise(SIGUSR1);
	else if (kind == EXIT)
		end_thread(turn);
	else
		call_on(turn, kind == SEGMENTS ? middle_heads : low_heads, second_top);
	KEEP_FRAME();
}

NOIPA void tails_end(unsigned long turn)
{
	this_turn = turn;
	if (kind == SIGNAL)
		raise(SIGUSR2);
	else if (kind == EXIT)
		chain_nap(turn);
	else
		call_on(turn, kind == SEGMENTS ? middle_tails : low_tails, second_top);
	KEEP_FRAME();
}

/* signal, segments */

static NOIPA void *stacks_main(void *arg)
{
	stack_t alternate = {.ss_sp = new_stack(), .ss_size = STACK};

	chain_begin();
	if (sigaltstack(&alternate, NULL))
		target_die("sigaltstack");
	second_top = new_stack() + STACK;
	third_top = new_stack() + STACK;
	__atomic_store_n((int *)arg, gettid(), __ATOMIC_RELEASE);
	for (unsigned long turn = 0;; turn++) {
		heads_0(turn);
		tails_0(turn);
		chain_turned();
	}
	return NULL;
}

/* coroutine */

static NOIPA void coroutine_main(void)
{
	for (unsigned long turn = 0;; turn++) {
		heads_0(turn);
		tails_0(turn);
		chain_turned();
	}
}

static NOIPA void make_coroutine(ucontext_t *ret)
{
	if (getcontext(ret))
		target_die("getcontext");
	ret->uc_stack.ss_sp = new_stack();
	ret->uc_stack.ss_size = STACK;
	makecontext(ret, coroutine_main, 0);
}

static NOIPA void *scheduler_main(void *arg)
{
	ucontext_t coroutines[2];
	char *tops[2];

	chain_begin();
	for (int i = 0; i < 2; i++) {
		make_coroutine(&coroutines[i]);
		// Below it: a caller's frame has to be above.
		tops[i] = new_stack() + STACK;
	}
	__atomic_store_n((int *)arg, gettid(), __ATOMIC_RELEASE);
	for (unsigned long turn = 0;; turn++) {
		current = &coroutines[turn % 2];
		second_top = tops[turn % 2];
		swapcontext(&scheduler, current);
		if (turn % 3 == 0)
			chain_nap(turn);
	}
	return NULL;
}

/* vfork */

// So much above the stack pointer of fork_here's caller is kept: the frames of fork_inner and
// fork_middle, and some of fork_outer.
#define KEPT 768

static __thread struct kept {
	char *address;
	char bytes[KEPT];
} kept;

// vfork(2) for a child that returns, which nobody is allowed to, and which some do: keeps what is on
// the stack, for the child to write it back. Returns as glibc's does, by a register.
NOIPA int fork_here(struct kept *ret);
__asm__(".text\n\t.type fork_here, @function\nfork_here:\n\t.cfi_startproc\n\t"
	"popq %rdx\n\t.cfi_def_cfa_offset 0\n\t.cfi_register 16, 1\n\t"
	"movq %rsp, (%rdi)\n\t"
	"leaq 8(%rdi), %rdi\n\t"
	"movq %rsp, %rsi\n\t"
	"movl $768, %ecx\n\t"
	"rep movsb\n\t"
	"movl $58, %eax\n\t"
	"syscall\n\t"
	"jmp *%rdx\n\t.cfi_endproc\n\t.size fork_here, . - fork_here\n");

// Writes the parent's frames back, this one's among them, and ends.
static inline void __attribute__((always_inline, noreturn)) give_back_and_end(void)
{
	__asm__ volatile("rep movsb\n\t"
			 "xorl %%edi, %%edi\n\t"
			 "movl $231, %%eax\n\t"
			 "syscall"
			 :
			 : "S"(kept.bytes), "D"(kept.address), "c"(KEPT)
			 : "memory");
	__builtin_unreachable();
}
_Static_assert(SYS_vfork == 58 && SYS_exit_group == 231 && KEPT == 768, "as in the assembly");

static NOIPA void child_inner(unsigned long turn)
{
	volatile unsigned long pad[16] = {turn, turn, turn, turn, turn, turn, turn, turn};

	chain_nap(pad[3] + 6);
	give_back_and_end();
}

static NOIPA void child_middle(unsigned long turn)
{
	child_inner(turn);
	KEEP_FRAME();
}

static NOIPA bool fork_inner(void)
{
	int child = fork_here(&kept);

	if (child < 0)
		target_die("vfork");
	if (child && waitpid(child, NULL, 0) != child)
		__atomic_fetch_add(&chain_interrupted, 1, __ATOMIC_RELAXED);
	return child == 0;
}

static NOIPA bool fork_middle(void)
{
	volatile unsigned long pad[4] = {1};
	bool is_child = fork_inner();

	return pad[0] && is_child;
}

static NOIPA void fork_outer(unsigned long turn)
{
	volatile unsigned long pad[96] = {turn};

	if (fork_middle())
		child_middle(pad[0]);
	KEEP_FRAME();
}

static NOIPA void *fork_main(void *arg)
{
	chain_begin();
	__atomic_store_n((int *)arg, gettid(), __ATOMIC_RELEASE);
	for (unsigned long turn = 0;; turn++) {
		fork_outer(turn);
		chain_turned();
	}
	return NULL;
}

/* exit */

static NOIPA void *leaver_main(void *arg)
{
	heads_0((unsigned long)(uintptr_t)arg);
	KEEP_FRAME();
	return NULL;
}

static NOIPA void *heir_main(void *arg)
{
	chain_begin();
	tails_0((unsigned long)(uintptr_t)arg);
	KEEP_FRAME();
	return NULL;
}

static NOIPA void join_one(void *(*function)(void *), void *arg, const pthread_attr_t *attr)
{
	pthread_t thread;

	errno = pthread_create(&thread, attr, function, arg);
	if (errno)
		target_die("pthread_create");
	errno = pthread_join(thread, NULL);
	if (errno)
		target_die("pthread_join");
	KEEP_FRAME();
}

static NOIPA void *heritage_main(void *arg)
{
	char *stack = new_stack();
	pthread_attr_t attr;

	pthread_attr_init(&attr);
	pthread_attr_setstack(&attr, stack, STACK);
	__atomic_store_n((int *)arg, gettid(), __ATOMIC_RELEASE);
	for (unsigned long turn = 0;; turn++) {
		void *number = (void *)(uintptr_t)turn;

		join_one(leaver_main, number, &attr);
		join_one(heir_main, number, &attr);
		chain_turned();
	}
	return NULL;
}

// Threads that leave their memory have to wait for it.
static NOIPA void *mapper_main(void *arg)
{
	(void)arg;
	for (unsigned long turn = 0;; turn++) {
		for (int i = 0; i < 20; i++) {
			char *stack = new_stack();

			stack[GUARD] = stack[STACK / 2] = 1;
			munmap(stack, STACK);
		}
		chain_nap(turn);
	}
	return NULL;
}

static void print_chains(void)
{
	static const char *const inner[][2] = {
		[SIGNAL] = {"low_heads,on_heads,heads_end", "low_tails,on_tails,tails_end"},
		[SEGMENTS] = {"low_heads,call_on,middle_heads,call_on,heads_end",
			      "low_tails,call_on,middle_tails,call_on,tails_end"},
		[COROUTINE] = {"low_heads,call_on,heads_end", "low_tails,call_on,tails_end"},
		[EXIT] = {"end_thread,heads_end", "tails_end"},
	};

	chain_print("target_read_command,target_serve,main", NULL, NULL);
	if (kind == VFORK) {
		chain_print("fork_here,fork_inner,fork_middle,fork_outer,fork_main", NULL, NULL);
		return;
	}
	chain_print(inner[kind][0], "heads",
		    kind == COROUTINE ? "coroutine_main"
				      : (kind == EXIT ? "leaver_main" : "stacks_main"));
	chain_print(inner[kind][1], "tails",
		    kind == COROUTINE ? "coroutine_main"
				      : (kind == EXIT ? "heir_main" : "stacks_main"));
	if (kind == COROUTINE)
		chain_print("scheduler_main", NULL, NULL);
	if (kind == EXIT) {
		chain_print("join_one,heritage_main", NULL, NULL);
		chain_print("new_stack,mapper_main", NULL, NULL);
	}
}

static void handle(int number, void (*function)(int))
{
	struct sigaction action = {.sa_handler = function, .sa_flags = SA_ONSTACK};

	if (sigaction(number, &action, NULL))
		target_die("sigaction");
}

int main(int argc, char **argv)
{
	static void *(*const mains[])(void *) = {
		[SIGNAL] = stacks_main, [SEGMENTS] = stacks_main, [COROUTINE] = scheduler_main,
		[VFORK] = fork_main,	[EXIT] = heritage_main,
	};
	int count = argc > 2 ? atoi(argv[2]) : 0;

	while (argc > 1 && kind <= EXIT && strcmp(argv[1], kinds[kind]))
		kind++;
	if (argc < 4 || kind > EXIT || count < 1 || count > 256) {
		fprintf(stderr, "usage: stacks KIND N NANOSECONDS\n");
		return 2;
	}
	chain_nap_ns = atol(argv[3]);
	handle(SIGUSR1, on_heads);
	handle(SIGUSR2, on_tails);
	print_chains();
	for (int i = 0; i < count; i++)
		pthread_detach(target_thread(mains[kind], &tids[i], 1 << 18));
	if (kind == EXIT)
		pthread_detach(target_thread(mapper_main, NULL, 0));
	for (int i = 0; i < count; i++)
		target_wait_set(&tids[i]);
	target_ready();
	target_serve(chain_answer);
}
