# SPDX-License-Identifier: Apache-2.0
"""gdb's text: every layout that it has had since version 7, whole, torn, and among other text."""

from __future__ import annotations

import sys

import pytest

from stallscope.analyzers import importers
from stallscope.analyzers.importers import dump, gdb
from stallscope.base.errors import StallscopeError
from stallscope.model.capture import Capture, LockKind, Thread

if sys.version_info >= (3, 14):
    pass
else:
    pass


def load(text: str | bytes) -> list[Capture]:
    data = text if isinstance(text, bytes) else text.encode()
    return importers.load(data, "dump.txt")


def one(text: str | bytes) -> Capture:
    captures = load(text)
    assert len(captures) == 1
    return captures[0]


def symbols(thread: Thread) -> list[str | None]:
    return [frame.symbol for frame in thread.frames]


@pytest.mark.parametrize(
    ("header", "tid", "name"),
    [
        ("Thread 12 (Thread 0x7f3f601b5700 (LWP 29377)):", 29377, ""),
        ('Thread 12 (Thread 0x7f3f601b5700 (LWP 29377) "mysqld"):', 29377, "mysqld"),
        ('Thread 3 (LWP 29377 "ib_log_writer"):', 29377, "ib_log_writer"),
        ("Thread 285 (LWP 3295165):", 3295165, ""),
        ("Thread 0x7f3f601b5700 (LWP 29377):", 29377, ""),
        ("Thread 1 (process 4711):", 4711, ""),
        ("Thread 5 (Thread 100.104):", 104, ""),
        ("Thread 37 (Thread 47274371575616 (LWP 5485)):", 5485, ""),
        ("\tThread 4 (Thread 0x7fba5d972700 (LWP 13506)):", 13506, ""),
        ("[Switching to thread 2 (Thread 0x7f3f601b5700 (LWP 29377))]", 29377, ""),
        ("Thread 3 (Thread 0x7f3f601b5700 (LWP 29377) (Exiting)):", 29377, ""),
    ],
)
def test_thread_headers(header: str, tid: int, name: str) -> None:
    capture = one(f"{header}\n#0  0x00007f8fab4468d0 in poll () from /lib64/libc.so.6\n")
    (thread,) = capture.threads
    assert (thread.tid, thread.name) == (tid, name)
    assert symbols(thread) == ["poll"]
    assert thread.state == "?"
    assert thread.label is None


@pytest.mark.parametrize(
    ("line", "symbol", "pc", "source", "library"),
    [
        (
            "#0  0x00007f1 in pthread_cond_wait@@GLIBC_2.3.2 () from /lib64/libpthread.so.0",
            "pthread_cond_wait@@GLIBC_2.3.2",
            0x7F1,
            None,
            "/lib64/libpthread.so.0",
        ),
        ("#3  0x00aa in ?? ()", None, 0xAA, None, None),
        ("#3  0x00aa in ?? () from /usr/lib64/libstdc++.so.6", None, 0xAA, None, "libstdc++.so.6"),
        ("#2  <signal handler called>", "<signal handler called>", None, None, None),
        (
            "#13 que_run_threads_low (thr=0x7fa054aa7fc0) at /src/que/que0que.cc:1119",
            "que_run_threads_low",
            None,
            "/src/que/que0que.cc:1119",
            None,
        ),
        (
            "#8  PolicyMutex<TTASEventMutex<GenericPolicy> >::enter (line=1) at a.h:2",
            "PolicyMutex<TTASEventMutex<GenericPolicy> >::enter",
            None,
            "a.h:2",
            None,
        ),
        (
            "#1  0x044d in boost::condition_variable::wait(boost::unique_lock<boost::mutex>&) ()",
            "boost::condition_variable::wait(boost::unique_lock<boost::mutex>&)",
            0x44D,
            None,
            None,
        ),
        (
            "#4  0x01 in A<(_Lock_policy)2>::release() (this=0x7f) at x/shared ptr.h:9",
            "A<(_Lock_policy)2>::release()",
            1,
            "x/shared ptr.h:9",
            None,
        ),
        (
            "#5  0x01 in Runnable::operator()<void (*)()> (f=@0x7f: 0x2 <srv()>) at y.h:1",
            "Runnable::operator()<void (*)()>",
            1,
            "y.h:1",
            None,
        ),
        ("#5  0x01 in A::operator< (this=0x0) at y.h:1", "A::operator<", 1, "y.h:1", None),
        ("#5  0x01 in A::operator<< (this=0x0) at y.h:1", "A::operator<<", 1, "y.h:1", None),
        ("#5  0x01 in A::operator-> (this=0x0) at y.h:1", "A::operator->", 1, "y.h:1", None),
        (
            "#5  0x01 in (anonymous namespace)::f (x=1) at y.h:1",
            "(anonymous namespace)::f",
            1,
            "y.h:1",
            None,
        ),
        (
            '#5  0x01 in f (s=0x1 "SELECT (\\"a) at b:1", n=2) at y.c:7',
            "f",
            1,
            "y.c:7",
            None,
        ),
        ("#5  0x01 in f (c=0 '\\000', d=40 '(') at y.c:7", "f", 1, "y.c:7", None),
    ],
)
def test_frame_layouts(
    line: str, symbol: str | None, pc: int | None, source: str | None, library: str | None
) -> None:
    capture = one(f"Thread 1 (LWP 7):\n#0  0x01 in start ()\n{line.replace('#0 ', '#1 ')}\n")
    frame = capture.threads[0].frames[1]
    assert frame.symbol == symbol
    assert frame.pc == pc
    assert frame.source == source
    assert (frame.module is not None) == (library is not None)
    if library is not None and frame.module is not None:
        assert frame.module.path.endswith(library)


WRAPPED = """\
Thread 37 (Thread 0x7fa6e1faa700 (LWP 9840)):
#0  0x00007fa77bb05ad3 in futex_wait_cancelable (private=<optimized out>, expected=0,
    futex_word=0x1db0f2c <Handler::COND_thread_cache+44>)
    at ../sysdeps/unix/sysv/linux/futex-internal.h:88
#1  __pthread_cond_wait_common (abstime=0x0,
---Type <return> to continue, or q <return> to quit---
    mutex=0x1db0f40 <Handler::LOCK_thread_cache>) at pthread_cond_wait.c:502
--Type <RET> for more, q to quit, c to continue without paging--
#2  0x0000000000d10b1a in native_cond_wait (cond=0x1)
   from /usr/lib/libcond.so
#3  0x0000000000eb8684 in pfs_spawn_thread (arg=0x6b80910)
    at /usr/src/pfs.cc:2197
"""


def test_wrapped_arguments_and_pager_lines() -> None:
    (thread,) = one(WRAPPED).threads
    assert symbols(thread) == [
        "futex_wait_cancelable",
        "__pthread_cond_wait_common",
        "native_cond_wait",
        "pfs_spawn_thread",
    ]
    assert thread.frames[0].source == "../sysdeps/unix/sysv/linux/futex-internal.h:88"
    assert thread.frames[1].source == "pthread_cond_wait.c:502"
    assert thread.frames[2].module is not None
    assert thread.frames[3].source == "/usr/src/pfs.cc:2197"


FULL = """\
Thread 2 (Thread 0x7fa6e1faa700 (LWP 9840)):
#0  0x0000003dee4f82ce in __lll_lock_wait () from /lib64/libc.so.6
No symbol table info available.
#1  0x0000000000d10b1a in worker (arg=0x0) at w.c:5
        count = 3
        name = "at nowhere.c:1 (unbalanced"
        inner = {a = 1, b = {
            c = 2}}
        __PRETTY_FUNCTION__ = "void worker(void*)"
#2  0x0000000000eb8684 in start_thread (arg=0x6b80910) at pthread_create.c:463
        pd = 0x6b80910
Backtrace stopped: previous frame identical to this frame (corrupt stack?)
"""


def test_bt_full_locals_are_no_frames() -> None:
    (thread,) = one(FULL).threads
    assert symbols(thread) == ["__lll_lock_wait", "worker", "start_thread"]
    assert thread.frames[1].source == "w.c:5"
    assert thread.unwind == "bad-cfi"


@pytest.mark.parametrize(
    ("line", "unwind"),
    [
        ("Backtrace stopped: Cannot access memory at address 0x8", "no-memory"),
        ("Backtrace stopped: previous frame inner to this frame (corrupt stack?)", "bad-cfi"),
        ("(More stack frames follow...)", "limit"),
        ("something else", "complete"),
    ],
)
def test_why_a_stack_ends(line: str, unwind: str) -> None:
    capture = one(f"Thread 1 (LWP 7):\n#0  0x01 in a ()\n#1  0x02 in b ()\n{line}\n")
    assert capture.threads[0].unwind == unwind


def test_several_dumps_in_one_file() -> None:
    dump = "Thread 2 (LWP 8):\n#0  0x01 in a ()\nThread 1 (LWP 7):\n#0  0x02 in b ()\n"
    first, second = load(dump + "some words\n" + dump.replace("0x02", "0x03"))
    assert [thread.tid for thread in first.threads] == [8, 7]
    assert [thread.tid for thread in second.threads] == [8, 7]
    assert second.threads[1].frames[0].pc == 3


def test_dumps_of_two_processes() -> None:
    """No thread id stands twice, but gdb's own numbers do."""
    dump = "Thread 2 (LWP 8):\n#0  0x01 in a ()\nThread 1 (LWP 7):\n#0  0x02 in b ()\n"
    other = dump.replace("LWP ", "LWP 10")
    first, second = load(dump + other)
    assert [thread.tid for thread in second.threads] == [108, 107]
    assert second.processes[0].pid == 107
    assert first.processes[0].pid == 7


def test_switching_to_a_thread_prints_its_frame_twice() -> None:
    (thread,) = one(
        "[Switching to thread 2 (Thread 0x7f00 (LWP 8))]\n#0  0x01 in a ()\n(gdb) bt\n"
        "#0  0x01 in a ()\n#1  0x02 in b ()\n"
    ).threads
    assert (thread.tid, symbols(thread)) == (8, ["a", "b"])


def test_dumps_are_separated_by_what_is_between_them() -> None:
    dump = "#0  0x01 in a ()\n#1  0x02 in b ()\n"
    captures = load("TS 1500000000.1 a\n" + dump + "TS 1500000001.1 b\n" + dump)
    assert [len(capture.threads) for capture in captures] == [1, 1]


def test_frames_without_header_are_threads_of_their_own() -> None:
    capture = one("$ pstack 7\n#0  0x01 in a ()\n#1  0x02 in b ()\n#0  0x01 in c ()\n")
    assert [symbols(thread) for thread in capture.threads] == [["a", "b"], ["c"]]
    assert [thread.tid for thread in capture.threads] == [0, 0]


def test_the_process_and_its_program() -> None:
    capture = one(
        "Attaching to program: /usr/sbin/mysqld, process 4242\n"
        "[New LWP 4243]\nThread 2 (LWP 4243):\n#0  0x01 in a ()\n"
        "Thread 1 (LWP 4242):\n#0  0x01 in a ()\n"
    )
    assert capture.processes[0].pid == 4242
    assert capture.processes[0].exe == "/usr/sbin/mysqld"


def test_the_main_thread_gives_the_pid() -> None:
    assert one("Thread 1 (LWP 77):\n#0  0x01 in main ()\n").processes[0].pid == 77


def test_the_end_of_the_stack_is_no_frame() -> None:
    text = "Thread 1 (LWP 7):\n#0  0x01 in a ()\n#1  0x0000000000000000 in ?? ()\n"
    assert symbols(one(text).threads[0]) == ["a"]


LOCKED = """\
Thread 3 (LWP 13):
#0  0x00007fd68fe654cd in __lll_lock_wait () from /lib64/libpthread.so.0
#1  0x00007fd68fe60da2 in pthread_mutex_lock () from /lib64/libpthread.so.0
#2  0x0000000000cf65e3 in native_mutex_lock (mutex=0x20baf60 <LOCK_open>) at thr_mutex.h:91
#3  0x0000000000cf65e3 in open_table (thd=0x1) at sql_base.cc:91
Thread 2 (LWP 12):
#0  0x00007fd68fe654cd in futex_wait (futex_word=0x20baf60 <LOCK_open>) at futex-internal.h:146
#1  0x00007fd68fe60da2 in ___pthread_mutex_lock (mutex=mutex@entry=0x20baf60 <LOCK_open>) at l.c:1
Thread 1 (LWP 11):
#0  0x00007fd68fe654cd in poll () from /lib64/libpthread.so.0
"""


def test_locks_that_gdb_names() -> None:
    capture = one(LOCKED)
    (lock,) = capture.locks
    assert (lock.address, lock.symbol, lock.kind) == (0x20BAF60, "LOCK_open", LockKind.MUTEX)
    assert (lock.waiters, lock.owner_tid, lock.source) == (2, None, "frames")
    assert [thread.lock for thread in capture.threads] == [0, 0, None]


def test_latin_1_and_broken_utf_8() -> None:
    text = 'Thread 1 (LWP 7):\n#0  0x01 in f (sql=0x1 "caf\xe9") at a.c:1\n#1  0x02 in g ()\n'
    for data in (text.encode("latin-1"), text.encode(), b"\xef\xbb\xbf" + text.encode()):
        assert symbols(one(data).threads[0]) == ["f", "g"]


def test_torn_in_the_middle_of_a_frame() -> None:
    capture = one('Thread 1 (LWP 7):\n#0  0x01 in a ()\n#1  0x02 in b (x=0x1, y="unt')
    assert symbols(capture.threads[0]) == ["a", "b"]


def test_a_thread_without_frames_is_noted() -> None:
    capture = one("Thread 2 (LWP 8):\nThread 1 (LWP 7):\n#0  0x01 in a ()\n")
    assert [thread.tid for thread in capture.threads] == [7]
    assert [note.code for note in capture.notes] == ["no-frames"]


def test_decorated_names() -> None:
    assert symbols(one("#0  0x01 in ***Wait*** () at s.c:200\n").threads[0]) == ["Wait"]


def test_counted_stacks() -> None:
    head = "threads with the following stack trace:"
    capture = one(
        f"2396 {head}\n\t#0  0x1 in a ()\n\t#1  0x2 in b ()\n\n4 {head}\n\t#0  0x1 in c ()\n"
    )
    assert [(thread.count, symbols(thread)) for thread in capture.threads] == [
        (2396, ["a", "b"]),
        (4, ["c"]),
    ]


def test_deep_stacks_are_cut_and_it_is_said() -> None:
    frames = "".join(f"#{n}  0x01 in recurse ()\n" for n in range(gdb.MAX_FRAMES + 5))
    capture = one("Thread 1 (LWP 7):\n" + frames)
    assert len(capture.threads[0].frames) == gdb.MAX_FRAMES
    assert capture.threads[0].unwind == "limit"
    assert [note.code for note in capture.notes] == ["frames-cut"]


def test_equal_frames_are_one_object() -> None:
    text = "".join(f"Thread {n} (LWP {n}):\n#0  0x01 in a () from /l.so\n" for n in range(1, 4))
    threads = one(text).threads
    assert threads[0].frames[0] is threads[2].frames[0]


def test_too_many_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dump, "MAX_THREADS", 2)
    text = "".join(f"Thread {n} (LWP {n}):\n#0  0x01 in a ()\n" for n in range(1, 4))
    with pytest.raises(StallscopeError, match="more than 2 threads"):
        load(text)


@pytest.mark.parametrize(
    "text",
    [
        "\\#0  0x00007f00 in poll () from /lib64/libc.so.6\n"
        "\\#1  0x0000000000400100 in serve (fd=3) at serve.c:7\n",
        "Thread 2 (Thread 0x7f00 (LWP 12)): #0 0x00007f00 in poll () from /lib64/libc.so.6 "
        "#1 0x0000000000400100 in serve (fd=3) at serve.c:7\n",
        "0  0x00007f00 in poll () from /lib64/libc.so.6\n"
        "1  0x0000000000400100 in serve (fd=3) at serve.c:7\n",
        " 0  0x00007f0000 in poll () from /lib64/libc.so.6\n"
        " 1  0x0000000000400100 in serve (fd=3) at serve.c:7\n",
        "0  poll () at poll.c:3\n#1  0x0000000000400100 in serve (fd=3) at serve.c:7\n",
    ],
    ids=["escaped", "one line", "no signs", "no signs, indented", "first sign lost"],
)
def test_what_markup_does_to_frames(text: str) -> None:
    (thread,) = one(text.replace("0x00007f00 ", "0x00007f0012 ")).threads
    assert symbols(thread) == ["poll", "serve"]


def test_numbers_in_arguments_are_no_frames() -> None:
    text = (
        '#0  0x00007f0012 in parse (text=0x7f "order #1 0x12 of #2 (two)") at parse.c:3\n'
        "#1  0x0000000000400100 in serve (fd=3) at serve.c:7\n"
    )
    (thread,) = one(text).threads
    assert symbols(thread) == ["parse", "serve"]
