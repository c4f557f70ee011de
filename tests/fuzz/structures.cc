// SPDX-License-Identifier: Apache-2.0
// Structures under names that packs have, for fuzz_dwarf.c.
struct ilink {
	ilink *next, *prev;
	virtual ~ilink()
	{
	}
};
template <class T> struct sux_lock {
	T lock;
	union {
		int writer;
		struct {
			short low, high;
		};
	};
	static int count;
};
struct Statement : ilink {
	struct {
		char *str;
		unsigned long length;
	} query;
	int bits : 3;
};
struct Security_context {
	char user[16];
};
class THD : public Statement, virtual public Security_context
{
	sux_lock<long> lock;
	const volatile Security_context *seen;
	volatile Security_context main_security_ctx;
};
typedef struct {
	THD *thd;
	sux_lock<int> mutex[2];
} mutex_t;

// Names that fill the room for a scope to its end, and go far beyond it.
#define LONG(ten, three) ten##ten##ten##ten##ten##ten##ten##ten##ten##three
#define OUTER LONG(nnnnnnnnnn, nnn)
#define INNER LONG(LLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLL, LLL)
namespace OUTER
{
namespace INNER
{
struct S {
	int x;
};
S s;
} // namespace INNER
} // namespace OUTER

THD thd;
mutex_t mutex;
