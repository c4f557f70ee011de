# SPDX-License-Identifier: Apache-2.0
"""Reports: an analysis in, exactly this text out.

``STALLSCOPE_UPDATE_GOLDEN=1 pytest tests/unit/test_reporters.py`` writes the files: read the
difference before you keep it.
"""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import msgspec
import pytest

from stallscope.analyzers.analysis import (
    Analysis,
    Blocker,
    Edge,
    Finding,
    Group,
    Impact,
    Link,
    WaiterGroup,
)
from stallscope.model.capture import (
    Capture,
    Frame,
    Label,
    Lock,
    LockKind,
    Note,
    Process,
    Syscall,
    Thread,
    Trigger,
)
from stallscope.model.reading import Reading
from stallscope.reporters import json as json_reporter
from stallscope.reporters import terminal
from stallscope.reporters.connection import connection_query
from stallscope.reporters.lines import Line, print_lines, wrap
from stallscope.reporters.trigger import why
from tests.unit.captures import convoy, stack

GOLDEN = Path(__file__).parent.parent / "data" / "reports"
WAITING = ("__lll_lock_wait", "pthread_mutex_lock", "open_table")
HOLDING = ("pread64", "dict_update_statistics", "open_table")
HOSTILE = "evil\x1b[2J\x1b]0;owned\x07\u202e\nname"


def stalled() -> Analysis:
    """A holder that reads from disk; one of its waiters' stacks is torn and cut."""
    capture = convoy()
    threads = list(capture.threads)
    reading = tuple(
        Frame(symbol=name, kernel=True, pc=i)
        for i, name in enumerate(("folio_wait_bit_common", "filemap_read", "vfs_read", "sys_read"))
    )
    call = Syscall(nr=17, name="pread64")
    threads[0] = msgspec.structs.replace(threads[0], syscall=call, kernel_frames=reading)
    threads[0] = msgspec.structs.replace(
        threads[0],
        connection=12,
        user="app",
        database="shop",
        command="Query",
        activity="Opening tables",
    )
    for i, (table, digest) in enumerate((("a", "1"), ("b", "2"), ("b", "2")), 1):
        threads[i] = msgspec.structs.replace(
            threads[i], query=f"SELECT * FROM {table} WHERE x = ?", digest=digest, connection=12 + i
        )
    threads[3] = msgspec.structs.replace(threads[3], label=Label.RACED, unwind="no-cfi")
    capture = msgspec.structs.replace(capture, threads=tuple(threads))
    finding = Finding(
        signature="table-open-lock",
        title="Tables cannot be opened: statements queue for the table cache's lock",
        confidence=0.9312,
        threads=3,
        blocker=Blocker(
            tid=100,
            name="mysqld",
            frames=HOLDING,
            state="waiting",
            sql="SELECT *\n  FROM t WHERE a = 1",
            thread=0,
        ),
        waiters=(WaiterGroup(3, WAITING),),
        locks=capture.locks,
        chain=(Link("table-open-lock", 3, 100),),
        evidence=("3 of 3 waiting threads wait here",),
        remedies=("Raise table_open_cache above the number of tables in use.",),
        references=("https://dom.as/2010/02/26/opening-tables-v2/",),
        against=("one stack is not known",),
        members=(1, 2, 3),
        impact=Impact(threads=3.0, share=0.75, time_s=12.25),
    )
    other = msgspec.structs.replace(
        finding,
        signature=None,
        title="1 thread waits in nothing known",
        confidence=0.2,
        threads=1,
        impact=Impact(threads=1.0, share=0.25),
    )
    return Analysis(
        capture=msgspec.structs.replace(capture, path="/tmp/stall.jsonl"),
        findings=(finding, other),
        groups=(
            Group(3, "waiting", WAITING, (1, 2, 3)),
            Group(1, "waiting", HOLDING, (0,)),
            Group(1, "idle", ("poll", "handle_connections_sockets", "main"), (4,), idle=True),
        ),
        states=("waiting", "waiting", "waiting", "waiting", "idle"),
        places=(HOLDING, WAITING[2:], WAITING[2:], WAITING[2:], ("poll",)),
        edges=tuple(Edge(waiter, 0, 0, "futex") for waiter in (1, 2, 3)),
        cycles=((100, 101),),
        server="mysql",
        version="5.5.9",
        inputs=({"path": "/tmp/stall.jsonl", "format": "stallscope", "captures": 1},),
    )


def healthy() -> Analysis:
    capture = msgspec.structs.replace(convoy(0), notes=(), locks=(), releases=(), trigger=None)
    return Analysis(
        capture=capture,
        findings=(),
        groups=(Group(2, "idle", ("poll", "main"), idle=True),),
        states=("idle", "idle"),
        server="mysql",
        version="26.7.0",
    )


def imported() -> Analysis:
    thread = Thread(tid=0, frames=(Frame(symbol="select"),), count=40)
    return Analysis(
        capture=Capture(backend="gdb", processes=(), threads=(thread,)),
        findings=(),
        groups=(Group(40, "waiting", ("select",), (0,)),),
        states=("waiting",),
        inputs=({"path": "dump.txt", "format": "gdb", "captures": 1},),
    )


def stopped() -> Analysis:
    base = stalled()
    threads = tuple(
        msgspec.structs.replace(thread, stopped_ns=1_500_000 + i)
        for i, thread in enumerate(base.capture.threads)
    )
    capture = msgspec.structs.replace(
        base.capture, backend="ptrace", threads=threads, stopped_ns=1_500_004
    )
    return msgspec.structs.replace(base, capture=capture)


def hostile() -> Analysis:
    """Everything that a target can choose holds escapes and line breaks."""
    base = stalled()
    long = "std::vector<" * 60 + "int" + ">" * 60 + "::push_back"
    finding = msgspec.structs.replace(
        base.findings[0],
        title=HOSTILE,
        blocker=Blocker(tid=1, name=HOSTILE, frames=(HOSTILE, long), state="running", sql=HOSTILE),
        locks=(Lock(0, 1, LockKind.MUTEX, symbol=HOSTILE, readers=2, stable=False),),
        evidence=(HOSTILE,),
        remedies=(HOSTILE,),
        chain=(Link(HOSTILE, 1, None),),
    )
    frames = (*stack(HOSTILE, long, "a" * 500), Frame(symbol="x", source=HOSTILE))
    threads = tuple(
        msgspec.structs.replace(
            t, name=HOSTILE, frames=frames, user=HOSTILE, activity=HOSTILE, query=HOSTILE
        )
        for t in base.capture.threads
    )
    locks = tuple(msgspec.structs.replace(lock, symbol=HOSTILE) for lock in base.capture.locks)
    capture = msgspec.structs.replace(
        base.capture,
        processes=(Process(pid=1, exe=f"/bin/{HOSTILE}", comm=HOSTILE),),
        threads=threads,
        locks=locks,
        backend_reason=HOSTILE,
        path=HOSTILE,
        notes=(Note(HOSTILE, HOSTILE),),
        trigger=Trigger(HOSTILE, HOSTILE, HOSTILE),
    )
    groups = (Group(3, "waiting", (HOSTILE, long, "a" * 500, "x"), (0,)),)
    places = ((HOSTILE, long, "a" * 500),) * len(threads)
    return msgspec.structs.replace(
        base, capture=capture, findings=(finding,), groups=groups, version=HOSTILE, places=places
    )


def test_waiters_without_a_finding_are_not_called_well() -> None:
    places = (WaiterGroup(3, ("zorn_wait", "zorn_work")), WaiterGroup(1, ("quib",)))
    analysis = msgspec.structs.replace(stalled(), findings=(), waiting_in=places)
    first = text(analysis).split("\n\n")[0]
    assert "no stall found" not in first
    assert "no stall is named, but 4 threads wait: 3 in zorn_wait < zorn_work" in " ".join(
        first.split()
    )


@pytest.mark.parametrize(
    ("reading", "unwind", "warning"),
    [
        (Reading(lines=9, frames=8, heads=1), "complete", ""),
        (Reading(lines=30, frames=18, unreadable=2, prose=10), "complete", ""),
        (Reading(lines=20, frames=16, unreadable=4), "complete", "20% of the dump's lines"),
        (Reading(lines=9, frames=9), "lost", "frames of 2 of 2 threads are lost"),
    ],
)
def test_a_dump_that_lost_much_says_so_first(reading: Reading, unwind: str, warning: str) -> None:
    base = healthy()
    threads = tuple(msgspec.structs.replace(t, unwind=unwind) for t in base.capture.threads[:2])
    capture = msgspec.structs.replace(base.capture, reading=reading, threads=threads)
    state = "incomplete" if unwind == "lost" else "idle"
    analysis = msgspec.structs.replace(base, capture=capture, states=(state, state))
    first = " ".join(text(analysis).split("\n\n")[0].split())
    assert warning in first
    assert ("Warning:" in first) == bool(warning)
    assert ("no stall found in what could be read" in first) == bool(warning)


def test_a_dump_without_names_is_not_called_well() -> None:
    base = healthy()
    threads = tuple(
        msgspec.structs.replace(t, frames=(Frame(pc=4096), Frame(pc=8192)))
        for t in base.capture.threads[:2]
    )
    capture = msgspec.structs.replace(base.capture, threads=threads)
    analysis = msgspec.structs.replace(base, capture=capture, states=("running", "running"))
    first = " ".join(text(analysis).split("\n\n")[0].split())
    assert "no stall found in what could be read" in first
    assert first.endswith("Warning: 2 of 2 threads have no name of a function.")


ANALYSES = {
    "stalled": stalled,
    "healthy": healthy,
    "imported": imported,
}
TEXTS = {**ANALYSES, "hostile": hostile}


def text(analysis: Analysis, **options: int) -> str:
    lines = terminal.render(analysis, terminal.Options(**options))  # type: ignore[arg-type]
    stream = io.StringIO()
    print_lines(lines, stream)
    return stream.getvalue()


def check(path: Path, actual: str) -> None:
    if os.environ.get("STALLSCOPE_UPDATE_GOLDEN"):
        path.write_text(actual, encoding="utf-8")
    assert actual == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", TEXTS)
def test_text(name: str) -> None:
    check(GOLDEN / f"{name}.txt", text(TEXTS[name]()))


@pytest.mark.parametrize("name", TEXTS)
def test_full_text(name: str) -> None:
    check(GOLDEN / f"{name}-full.txt", text(TEXTS[name](), full=True))


@pytest.mark.parametrize("name", ANALYSES)
def test_json(name: str) -> None:
    value = json.loads(json_reporter.dumps(ANALYSES[name](), elapsed_ns=12_345_678))
    check(GOLDEN / f"{name}.json", json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def test_json_of_what_is_not_known() -> None:
    value = json_reporter.render(hostile())
    assert value["trigger"]["address"] is None
    finding = value["findings"][0]
    of_thread = ("label", "unwind", "syscall", "connection", "user", "database", "activity")
    assert [finding["blocker"][name] for name in of_thread] == [None] * 7
    lock = finding["locks"][0]
    assert (lock["readers"], lock["stable"], lock["owner_tid"]) == (2, False, None)
    assert finding["chain"][0]["tid"] is None


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("full", [0, 1])
@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_nothing_steers_the_terminal_or_is_wider(name: str, full: int, width: int) -> None:
    for line in text(TEXTS[name](), full=full, width=width).split("\n"):
        assert line.isprintable()
        address = line.startswith("  - https://")  # is copied, and never broken
        assert len(line) <= width or address
        assert line == line.rstrip()


def test_names_are_broken_after_their_parts() -> None:
    names = ("ns::" * 8 + "function_with_a_long_name", "plain" * 30)
    (first, second, *rest) = wrap(f"in {names[0]} {names[1]}", 40, indent="  ", hang="    ")
    assert first.text == "  in ns::ns::ns::ns::ns::ns::ns::ns::"
    assert second.text.strip().startswith("function_with_a_long_name")
    assert all(len(line.text) <= 40 for line in rest)
    assert "".join(line.text.strip() for line in rest).endswith("plain" * 6)


def test_lines_are_drawn_as_the_stream_can() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii", errors="backslashreplace")
    print_lines([Line("├─ └─ │ …")], stream)
    stream.flush()
    assert raw.getvalue() == b"|- `- | ...\n"


def test_proof_that_nothing_was_stopped() -> None:
    assert "0 threads stopped (stopped_ns 0)" in text(stalled())
    assert "5 threads stopped, the longest for 1.500 ms" in text(stopped())
    assert "0 threads stopped" not in text(imported())
    value = json_reporter.render(stopped())
    assert (value["stopped_ns"], value["threads"]["stopped"]) == (1_500_004, 5)


def with_finding(**changes: object) -> Analysis:
    base = stalled()
    finding = msgspec.structs.replace(base.findings[0], **changes)
    return msgspec.structs.replace(base, findings=(finding, *base.findings[1:]))


def test_a_statement_that_has_ended_is_called_the_last() -> None:
    assert "\n  query: SELECT * FROM t" in text(stalled())
    threads = list(stalled().capture.threads)
    threads[0] = msgspec.structs.replace(threads[0], command="Sleep", activity=None)
    capture = msgspec.structs.replace(stalled().capture, threads=tuple(threads))
    idle = msgspec.structs.replace(stalled(), capture=capture)
    assert "\n  last query: SELECT * FROM t" in text(idle)


def test_a_likely_blocker_is_called_likely() -> None:
    assert "; blocked by thread 100, waiting" in " ".join(text(stalled(), width=200).split())
    blocker = stalled().findings[0].blocker
    assert blocker is not None
    report = with_finding(blocker=msgspec.structs.replace(blocker, certain=False))
    assert "; likely blocked by thread 100, waiting" in " ".join(text(report, width=200).split())
    assert "\nBlocker, likely\n" in text(report)
    assert json_reporter.render(report)["findings"][0]["blocker"]["certain"] is False


def test_a_chain_is_shown_where_there_is_one() -> None:
    assert "Chain" not in text(stalled())
    links = (Link("innodb-deadlock-check", 0, 100), Link("innodb-row-lock", 1), Link("x", 2, 101))
    chain = text(with_finding(chain=links)).split("Wait chain, root first\n")[1].split("\n\n")[0]
    assert chain.split("\n") == [
        "  innodb-deadlock-check: thread 100",
        "  innodb-row-lock: 1 thread waits",
        "  x: 2 threads wait, blocked by thread 101",
    ]


def test_what_the_verdict_explains_is_not_repeated() -> None:
    base = with_finding(chain=(Link("table-open-lock", 3, 100), Link("metadata-lock", 2)))
    victim = msgspec.structs.replace(base.findings[0], signature="metadata-lock", title="Victims")
    report = msgspec.structs.replace(base, findings=(base.findings[0], victim))
    assert "Victims" not in text(report)
    assert "Other findings" not in text(report)
    assert len(json_reporter.render(report)["findings"]) == 2


def test_a_free_mutex_has_no_unknown_holder() -> None:
    base = stalled()
    locks = (msgspec.structs.replace(base.capture.locks[0], owner_tid=None),)
    report = msgspec.structs.replace(
        base, capture=msgspec.structs.replace(base.capture, locks=locks), edges=(), findings=()
    )
    assert "LOCK_open (mutex at 0xd000): free when it was read, 3 wait [futex]" in text(
        report, width=200
    )


def test_an_address_on_the_web_stays_whole() -> None:
    url = "https://dev.mysql.com/doc/refman/8.0/en/" + "a" * 80
    assert f"  - {url}\n" in text(with_finding(references=(url,)))


def test_the_connection_of_a_thread() -> None:
    frames = tuple(Frame(symbol=name) for name in ("poll", "do_command", "handle_connection"))
    thread = Thread(tid=77, ns_tid=7, frames=frames)
    base = stalled()

    def query(server: str | None, version: str | None, of: Thread = thread) -> str:
        analysis = msgspec.structs.replace(base, server=server, version=version)
        return connection_query(analysis, of) or ""

    assert query("mariadb", "10.11.6").endswith("information_schema.processlist WHERE tid = 7")
    assert query("mysql", "9.7.0").endswith("performance_schema.threads WHERE thread_os_id = 7")
    assert query("mysql", "5.7.44")
    assert not query("mysql", "5.5.9")
    assert not query("mysql", None)
    assert not query("postgres", "15.1")
    background = msgspec.structs.replace(thread, frames=frames[:1])
    assert not query("mysql", "9.7.0", background)


def test_top_limits_the_groups_but_not_the_json() -> None:
    assert "dict_update_statistics" not in text(stalled(), top=1).split("Threads by stack")[1]
    assert "1 thread in 1 more (--top 0" in text(stalled(), top=1)
    assert "--top" not in text(stalled(), top=0)
    assert len(json_reporter.render(stalled())["groups"]) == 3


def test_json_is_one_line_and_survives_lone_surrogates() -> None:
    base = stalled()
    capture = msgspec.structs.replace(base.capture, path="/tmp/\udcff")
    out = json_reporter.dumps(msgspec.structs.replace(base, capture=capture))
    assert "\n" not in out
    assert json.loads(out)["capture"] == "/tmp/\\udcff"


def test_colour_only_on_a_terminal_with_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    lines = [Line("verdict [bold]x[/bold]", "bold red")]
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", "COLORTERM", "FORCE_COLOR", "CLICOLOR_FORCE"):
        monkeypatch.delenv(name, raising=False)
    stream = Terminal()
    print_lines(lines, stream)
    assert "\x1b[" in stream.getvalue()
    assert "[bold]x[/bold]" in stream.getvalue()
    monkeypatch.setenv("NO_COLOR", "1")
    stream = Terminal()
    print_lines(lines, stream)
    assert stream.getvalue() == "verdict [bold]x[/bold]\n"
    monkeypatch.delenv("NO_COLOR")
    pipe = io.StringIO()
    print_lines(lines, pipe)
    assert pipe.getvalue() == "verdict [bold]x[/bold]\n"
    monkeypatch.setenv("CLICOLOR_FORCE", "1")
    pipe = io.StringIO()
    print_lines(lines, pipe)
    assert "\x1b[" in pipe.getvalue()


@pytest.mark.parametrize(
    ("trigger", "line"),
    [
        (
            Trigger("threshold", "fsync", "/d/ib_logfile0", tid=7, length_ms=50.04, waiters=1),
            "Taken because thread 7 waited 50.0 ms for fsync /d/ib_logfile0.",
        ),
        (
            Trigger(
                "convoy", "futex", address=0x1F, tid=7, threshold_ms=20.0, waiters=9, suppressed=1
            ),
            "Taken because thread 7 waited for futex 0x1f, as did 8 more (a convoy; threshold"
            " 20 ms); 1 capture suppressed before it.",
        ),
        (
            Trigger("threshold", "row-lock", tid=7, delay_ms=0.26, finished_ms=31.0),
            "Taken because thread 7 waited for row-lock; known 0.3 ms, finished 31.0 ms after the"
            " threshold.",
        ),
    ],
)
def test_why_it_was_taken(trigger: Trigger, line: str) -> None:
    assert why(trigger) == line
