// SPDX-License-Identifier: Apache-2.0
// cxx: stacks with the names that C++ makes, and with exceptions in flight. The facts hold the
// demangled names as c++filt prints them.
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#define NOIPA __attribute__((noipa))
#define KEEP_FRAME() __asm__ volatile("" ::: "memory")

static std::atomic<int> parked_tid;

namespace stall
{

NOIPA void park()
{
	parked_tid = gettid();
	for (;;) {
		pause();
		KEEP_FRAME();
	}
}

template <typename Key, int Size> struct Holder {
	NOIPA int wait(const std::map<Key, std::vector<int>> &tables) const
	{
		park();
		return static_cast<int>(tables.size()) + Size;
	}
};

struct Guard {
	NOIPA ~Guard()
	{
		park();
		KEEP_FRAME();
	}
};

NOIPA int operator+(const Guard &, int value)
{
	park();
	return value;
}

NOIPA void thrower(int value)
{
	if (value)
		throw std::runtime_error("duplicate key");
}

NOIPA void templated()
{
	Holder<std::string, 7> holder;
	std::map<std::string, std::vector<int>> tables;

	holder.wait(tables);
	KEEP_FRAME();
}

NOIPA void caught()
{
	try {
		thrower(1);
	} catch (const std::exception &) {
		park();
	}
	KEEP_FRAME();
}

// Parked by the destructor that runs while the exception unwinds the stack.
NOIPA void unwinding()
{
	try {
		Guard guard;

		thrower(1);
	} catch (const std::exception &) {
		KEEP_FRAME();
	}
}

NOIPA void operated()
{
	alignas(Guard) static char storage[sizeof(Guard)]; // a Guard proper would be destroyed

	*reinterpret_cast<Guard *>(storage) + 1;
	KEEP_FRAME();
}

NOIPA void in_lambda()
{
	int turn = 3;
	auto wait = [&turn](long more) __attribute__((noipa))
	{
		turn += static_cast<int>(more);
		park();
		KEEP_FRAME();
	};

	wait(4);
	KEEP_FRAME();
}

} // namespace stall

namespace
{

const struct {
	const char *name;
	void (*run)();
	const char *frames;
} shapes[] = {
	{"template", stall::templated,
	 "\"stall::park()\",\"stall::Holder<std::__cxx11::basic_string<char, "
	 "std::char_traits<char>, std::allocator<char> >, 7>::wait(std::map<"
	 "std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >, "
	 "std::vector<int, std::allocator<int> >, std::less<std::__cxx11::basic_string<char, "
	 "std::char_traits<char>, std::allocator<char> > >, std::allocator<std::pair<"
	 "std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> > const, "
	 "std::vector<int, std::allocator<int> > > > > const&) const\",\"stall::templated()\""},
	{"catch", stall::caught, "\"stall::park()\",\"stall::caught()\""},
	{"unwinding", stall::unwinding,
	 "\"stall::park()\",\"stall::Guard::~Guard()\",\"stall::unwinding()\""},
	{"operator", stall::operated,
	 "\"stall::park()\",\"stall::operator+(stall::Guard const&, int)\","
	 "\"stall::operated()\""},
	{"lambda", stall::in_lambda,
	 "\"stall::park()\",\"stall::in_lambda()::{lambda(long)#1}::operator()(long) const\","
	 "\"stall::in_lambda()\""},
};

NOIPA void *shape_main(void *arg)
{
	shapes[reinterpret_cast<uintptr_t>(arg)].run();
	KEEP_FRAME();
	return nullptr;
}

bool in_pause(int tid)
{
	std::ifstream file("/proc/self/task/" + std::to_string(tid) + "/syscall");
	std::string first;

	return (file >> first) && first == std::to_string(SYS_pause);
}

} // namespace

int main()
{
	for (uintptr_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
		pthread_t thread;

		parked_tid = 0;
		if (pthread_create(&thread, nullptr, shape_main, reinterpret_cast<void *>(i)))
			return 1;
		while (!parked_tid || !in_pause(parked_tid))
			std::this_thread::yield();
		std::printf("{\"fact\":\"thread\",\"tid\":%d,\"wait\":\"%s\",\"syscall\":34,"
			    "\"frames\":[%s,\"(anonymous namespace)::shape_main(void*)\"]}\n",
			    parked_tid.load(), shapes[i].name, shapes[i].frames);
	}
	std::puts("ready");
	std::fflush(stdout);
	for (char c; read(STDIN_FILENO, &c, 1) > 0;)
		if (c == '\n') {
			std::puts("{}");
			std::fflush(stdout);
		}
	_exit(0);
}
