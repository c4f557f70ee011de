# SPDX-License-Identifier: Apache-2.0
"""The parts of the live view, as rows of text that is escaped for a terminal."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TypeVar

import msgspec

from stallscope.analyzers.analysis import Analysis
from stallscope.analyzers.names import display
from stallscope.base.text import clean, end_of_name, one_line
from stallscope.model import threadhistory
from stallscope.model.capture import Lock, LockKind
from stallscope.model.waitlines import WaitLine
from stallscope.reporters import cost, firstlines, waittree
from stallscope.reporters import threads as thread_lines
from stallscope.reporters.lines import clock, short_name, wrap
from stallscope.reporters.sentence import Speaker
from stallscope.reporters.sessions import account, has_ended, session, statement
from stallscope.reporters.units import duration, number, size
from stallscope.screens.state import HISTORY, Doing, Moment, Rate, State, Watched
from stallscope.store import Summary

__all__ = [
    "SORTS",
    "Row",
    "Sort",
    "chart",
    "degraded_sources",
    "doing",
    "head",
    "incidents",
    "plain",
    "sparkline",
    "stack",
    "threads",
    "tree",
    "verdict",
    "waits",
]

_BARS = "▁▂▃▄▅▆▇█"
_STALE_SECONDS = 40.0
"""The age at which the states of a capture are no longer shown."""
_STALE_DOING = 5.0
"""The same, of threads that are sampled each second or a little less often."""
_NAME = 15
_LABEL = _NAME + 7
_ORDER = {"waiting": 0, "running": 1, "idle": 2}
_STYLES = {"waiting": "red", "running": "green", "idle": "dim"}
_TREE = waittree.Limits(roots=20, branches=8, lines=500, blocker_described=False)
_STATEMENT = 300
_GROUPS = 50
_WIDE = 130
"""The least width of a first line with a whole sentence."""
_NOTE_ROWS = 3
_RATES_FROM = 66
"""The least width of a pane with waits per second."""


class Row(msgspec.Struct, frozen=True):
    """One line: (text, style) by part. ``thread``: the index of its thread."""

    parts: tuple[tuple[str, str], ...]
    thread: int | None = None
    incident: str | None = None
    """Its id, where the row is of one."""
    columns: tuple[tuple[int, str], ...] = ()
    """Of a heading: where each column begins, and what it sorts by."""

    @property
    def text(self) -> str:
        """Return it without styles."""
        return "".join(text for text, _ in self.parts)


def plain(text: str, style: str = "", thread: int | None = None) -> Row:
    """Return a row of one style."""
    return Row(((text, style),), thread)


def head(state: State, width: int, *, paused: bool, pattern: re.Pattern[str] | None) -> Row:
    """Return the target, the time, and the user's settings."""
    analysis = state.analysis
    name = Speaker(analysis).server() if analysis is not None and not state.replay else state.title
    right = []
    if state.ended is not None:
        right.append(("ENDED", "bold red"))
    if paused:
        right.append(("PAUSED", "bold yellow"))
    if pattern is not None:
        right.append((f"/{one_line(pattern.pattern, 20)}/", "bold cyan"))
    if state.source == "inproc":
        right.append(("inproc", "cyan"))
    if state.source == "poll":
        right.append(("waits sampled", "cyan"))
    if not state.replay and (adds := _cost(state, width)):
        right.append((adds, "yellow"))
    if state.now:
        right.append((clock(state.now), ""))
    taken = sum(len(text) + 2 for text, _ in right)
    left = f"stallscope top  {_cut(one_line(name), max(10, width - taken - 17))}"
    room = width - len(left) - taken
    parts = [(left, "bold"), (" " * max(0, room), "")]
    for text, style in right:
        parts += [("  ", ""), (text, style)]
    return Row(tuple(parts))


def _cost(state: State, width: int) -> str:
    """Return what this view costs each system call of the host."""
    if state.line is None:
        return ""
    if width >= _WIDE:
        return cost.sentence(state.source, state.call_added_ns)
    return cost.brief(state.source, state.call_added_ns)


def verdict(state: State, width: int, rows: int) -> list[Row]:
    """Return the first lines of the last capture: what, who, and the statements that end it."""
    analysis = state.analysis
    if analysis is None:
        text = state.ended or "waiting for the first capture …"
        return [plain(line.text, "dim") for line in wrap(text, width)][:rows]
    return [plain(line.text, line.style) for line in firstlines.brief(analysis, width, rows)]


def degraded_sources(state: State, width: int) -> list[Row]:
    """Return the result of the last key, and one line about degraded sources."""
    texts = [state.ended] if state.ended is not None and state.analysis is not None else []
    texts += [state.note] if state.note else []
    rows: list[Row] = []
    for text in texts:  # a path is useful only as a whole
        found = list(wrap(one_line(text, 1000), width, hang="  "))[:_NOTE_ROWS]
        rows += [plain(line.text, "bold") for line in found]
    if state.degraded_sources:
        rows.append(
            plain(_cut(one_line("; ".join(state.degraded_sources.values())), width), "yellow")
        )
    return rows


def chart(state: State, width: int, most_rows: int = 5) -> list[Row]:
    """Return threads by state, and the rates of the server, over time: a column is a second."""
    columns = max(10, width - _LABEL - 1)
    series = _by_second(state.moments, state.now, min(columns, HISTORY), _STALE_SECONDS)
    most = max((m.waiting + m.running + m.idle for m in series if m is not None), default=0)
    rows = []
    for name in ("waiting", "running", "idle"):
        counts = [None if m is None else int(getattr(m, name)) for m in series]
        last = next((count for count in reversed(counts) if count is not None), None)
        style = _STYLES[name] if last or name == "idle" else "dim"
        rows.append(Row(((_label(name, last), style), (sparkline(counts, most), style))))
    rates = _rates(state, min(columns, HISTORY))
    if len(rows) + len(rates) > most_rows:
        # Rates come after seconds: on a low screen, other panes would lose their rows to them.
        del rows[-1]
    return (rows + rates)[:most_rows]


def _rates(state: State, columns: int) -> list[Row]:
    """Return statements a second, and threads that run, as the server's status says."""
    if not state.rates:
        return []
    series = _by_second(state.rates, state.now, columns, _STALE_DOING)
    rows = []
    for name, field in (("queries/s", "queries"), ("Threads_running", "running")):
        values = [None if one is None else float(getattr(one, field)) for one in series]
        last = next((value for value in reversed(values) if value is not None), None)
        most = max((value or 0.0 for value in values), default=0.0)
        label = _label(name, None if last is None else round(last))
        rows.append(Row(((label, "cyan"), (sparkline(values, most), "cyan"))))
    return rows


def doing(state: State, width: int, most_rows: int) -> list[Row]:
    """Return what active threads do over time: those that run, and the kinds of wait with the most
    threads; a column is a second."""
    columns = max(10, width - _LABEL - 1)
    series = _by_second(state.doing, state.now, min(columns, HISTORY), _STALE_DOING)
    sums: Counter[str] = Counter({threadhistory.RUNNING: 0})
    for one in series:
        if one is not None:
            sums.update({n: c for n, c in one.counts.items() if threadhistory.active(n)})
    if not state.doing:
        return []
    del sums[threadhistory.RUNNING]
    kinds = [name for name, _ in sums.most_common(most_rows - 1)]
    names = [threadhistory.RUNNING, *threadhistory.in_order(kinds)]
    shown = {n: [None if m is None else m.counts.get(n, 0) for m in series] for n in names}
    most = max((count or 0 for counts in shown.values() for count in counts), default=0)
    rows = []
    for name, counts in shown.items():
        last = next((count for count in reversed(counts) if count is not None), None)
        style = "green" if name == threadhistory.RUNNING else "red"
        style = style if last else "dim"
        label = _label(thread_lines.heading(name), last)
        rows.append(Row(((label, style), (sparkline(counts, most), style))))
    return rows


def _label(name: str, count: int | None) -> str:
    return f"{name[:_NAME]:<{_NAME}} {'' if count is None else number(count):>5} "


_Timed = TypeVar("_Timed", Moment, Doing, Rate)


def _by_second(
    moments: Iterable[_Timed], now: float, columns: int, stale_seconds: float
) -> list[_Timed | None]:
    """Return the latest moment of each second; None where it is too old."""
    out: list[_Timed | None] = [None] * columns
    for moment in moments:
        age = int(now) - int(moment.ts)
        start = columns - 1 - age
        for column in range(max(0, start), columns):
            stale = (column - start) > stale_seconds
            out[column] = None if stale else moment
    return out


def sparkline(values: Sequence[float | None], most: float) -> str:
    """Return a column for each value; each one above zero is visible."""
    if most <= 0:
        return "".join(" " if value is None else _BARS[0] for value in values)
    out = []
    for value in values:
        if value is None:
            out.append(" ")
        else:
            step = 0 if value <= 0 else 1 + int(min(value / most, 1.0) * (len(_BARS) - 2) + 0.5)
            out.append(_BARS[min(step, len(_BARS) - 1)])
    return "".join(out)


def tree(state: State, width: int) -> list[Row]:
    """Return the current wait chains, and the threads by stack."""
    analysis = state.analysis
    if analysis is None:
        return []
    found = waittree.render(analysis, max(30, width), _TREE)
    # The report indents sections; a pane has its title on its border.
    rows = [plain(line.text.removeprefix("  "), line.style, line.thread) for line in found]
    rows = rows or [plain("no thread waits for another", "dim")]
    rows += [plain(""), plain("threads by stack, innermost useful frame", "dim")]
    for group in analysis.groups[:_GROUPS]:
        first = group.threads[0] if group.threads else None
        place = " < ".join(map(short_name, () if first is None else analysis.places[first]))
        text = f"{group.count:>5} {group.state:<7} {place or 'no frame that is known'}"
        rows.append(plain(_cut(text, width), _STYLES.get(group.state, ""), first))
    return rows


def waits(state: State, width: int, pattern: re.Pattern[str] | None) -> list[Row]:
    """Return locks and files with numbers of the last interval, and a sparkline of threads."""
    if state.line is None:
        return []
    found = [item for item in state.busiest() if pattern is None or pattern.search(_title(item))]
    rates = width >= _RATES_FROM
    spark = max(8, min(60, width // 4 if rates else width // 6))
    room = width - spark - (27 if rates else 19)
    rate = f" {'waits/s':>7}" if rates else ""
    title = f"{'lock or file':<{room}}{rate} {'longest':>8} {'now':>5}  threads"
    rows = [plain(_cut(title, width), "dim")]
    if text := _written(state.line):
        rows.insert(0, plain(_cut(text, width), "cyan"))
    if not found:
        rows.append(plain("no waits in the last minutes", "dim"))
    for item in found:
        rows.append(_watched(item, room, spark, state.line.seconds if rates else None))
    return rows


def _written(line: WaitLine) -> str:
    """Return the bytes a second that were written to each class of file, the most first."""
    written = [(c.bytes or 0, c.file_class) for c in line.classes or () if c.kind == "write"]
    parts = [
        f"{clean(name)} {size(round(count / (line.seconds or 1.0)))}"
        for count, name in sorted(written, reverse=True)
        if count
    ]
    return f"written/s: {', '.join(parts)}" if parts else ""


def _title(item: Watched) -> str:
    return f"{item.key.kind} {clean(item.key.name)}"


def _watched(item: Watched, room: int, spark: int, seconds: float | None) -> Row:
    """Return the row of a lock or file; ``seconds`` None: without its rate."""
    key = item.key
    name = key.name if key.name.startswith(("/", ".../")) else short_name(key.name)
    rate = "" if seconds is None else f" {number(round(key.count / (seconds or 1.0))):>7}"
    longest = key.longest_ms
    loads = list(item.loads)[-spark:]
    numbers = f"{rate} {duration(longest) if longest else '':>8} {number(key.in_flight):>5}  "
    style = "red" if key.in_flight else ""
    kind = f"{clean(key.kind)} "
    padded: list[float | None] = [*[None] * (spark - len(loads)), *loads]
    return Row(
        (
            (kind, "cyan"),
            (f"{end_of_name(clean(name), room - len(kind)):<{max(0, room - len(kind))}}", style),
            (numbers, style),
            (sparkline(padded, max(1.0, *loads)), style or "yellow"),
        )
    )


def incidents(found: Sequence[Summary], width: int) -> list[Row]:
    """Return the last incidents, the newest first."""
    if not found:
        return [plain("no incidents in the store", "dim")]
    rows = []
    for item in found:
        verdict = item.verdict
        what = (verdict.signature or verdict.title) if verdict is not None else "no verdict"
        length = "ongoing" if item.going_on else ""
        if item.end_ns is not None:
            length = f"for {duration((item.end_ns - item.start_ns) / 1e6)}"
        trigger = f" ({item.trigger})" if item.trigger else ""
        text = f"{clock(item.start_ns / 1e9)} {what}{trigger} {length}, {item.captures} captures"
        style = "red" if item.going_on else ""
        rows.append(Row(((_cut(one_line(text, 400), width), style),), incident=item.id))
    return rows


class Sort(msgspec.Struct, frozen=True):
    """How the list of threads is ordered."""

    by: str = "state"
    reverse: bool = False


SORTS = ("state", "time", "connection", "user", "database", "statement")

_COLUMNS = (
    ("connection", "conn", 7, 0),
    ("user", "user@host", 18, 60),
    ("database", "database", 12, 110),
    ("time", "time", 8, 0),
    ("state", "state", 8, 0),
    ("activity", "server state", 22, 100),
)
"""What it sorts by, heading, width, and the least width of a screen that shows it."""


def threads(
    analysis: Analysis,
    width: int,
    pattern: re.Pattern[str] | None,
    sort: Sort = Sort(),  # noqa: B008
) -> list[Row]:
    """Return a heading and the threads; those that wait come first, if nothing else is asked."""
    shown = [column for column in _COLUMNS if width >= column[3]]
    rows = []
    for index in _ordered(analysis, sort):
        cells = _cells(analysis, index)
        text = "".join(_cell(cells[key], size) for key, _, size, _ in shown) + cells["statement"]
        whole = f"{analysis.capture.threads[index].tid} {' '.join(cells.values())}"
        if pattern is None or pattern.search(whole):
            style = _STYLES.get(analysis.states[index], "")
            rows.append(plain(_cut(text, width), style, index))
    return [_heading(shown, width, sort), *(rows or [plain("no thread matches the filter", "dim")])]


def _heading(shown: Sequence[tuple[str, str, int, int]], width: int, sort: Sort) -> Row:
    text, places = "", []
    for key, name, columns, _ in (*shown, ("statement", "statement, or where it is", 40, 0)):
        places.append((len(text), key))
        mark = ("▲" if sort.reverse else "▼") if key == sort.by else ""
        text += _cell(f"{name}{mark}", columns)
    return Row(((_cut(text, width), "bold"),), columns=tuple(places))


def _cell(text: str, columns: int) -> str:
    return f"{_cut(text, columns - 1):<{columns}}"


def _cells(analysis: Analysis, index: int) -> dict[str, str]:
    """Return what each column shows of a thread, without control characters."""
    thread = analysis.capture.threads[index]
    place = " < ".join(short_name(frame) for frame in analysis.places[index])
    query = statement(thread, _STATEMENT)
    number = thread.connection if thread.connection is not None else thread.tid
    ns = thread.age_ns if thread.age_ns is not None else thread.waited_ns
    activity = thread.activity or ("" if thread.command == "Query" else thread.command or "")
    return {
        "connection": str(number),
        "user": one_line(account(thread), 60),
        "database": one_line(thread.database or "", 60),
        "time": "" if ns is None else duration(ns / 1e6),
        "state": analysis.states[index],
        "activity": one_line(activity, 60),
        "statement": f"{query}  {clean(place)}" if query else clean(place),
    }


def _ordered(analysis: Analysis, sort: Sort) -> list[int]:
    threads = analysis.capture.threads

    def key(index: int) -> tuple[object, ...]:
        thread = threads[index]
        state = _ORDER.get(analysis.states[index], 3)
        time = -(thread.age_ns or thread.waited_ns or 0)
        first: dict[str, object] = {
            "time": time,
            "connection": thread.connection or thread.tid,
            "user": f"{thread.user or chr(0x10FFFF)}@{thread.host or ''}",
            "database": thread.database or chr(0x10FFFF),
            "statement": thread.query or chr(0x10FFFF),
            "activity": thread.activity or chr(0x10FFFF),
        }
        return (first.get(sort.by, state), state, time, thread.tid)

    return sorted(range(len(threads)), key=key, reverse=sort.reverse)


def stack(analysis: Analysis, index: int, width: int) -> list[Row]:
    """Return all facts about one thread."""
    thread = analysis.capture.threads[index]
    rows: list[Row] = []

    def say(text: str, style: str = "", indent: str = "", hang: str = "  ") -> None:
        found = wrap(text, width, indent=indent, hang=hang, style=style)
        rows.extend(plain(line.text, line.style) for line in found)

    who = Speaker(analysis).thread(thread.tid)
    say(f"{who}, {analysis.states[index]}", "bold")
    if session(thread):
        say(session(thread))
    if thread.query:
        what = "last query" if has_ended(thread) else "query"
        say(f"{what}: {one_line(thread.query, 4000)}", "cyan")
    lock = _lock(analysis, index)
    if lock is not None:
        say(f"waits for {Speaker(analysis).lock(lock)}", "yellow")
    if thread.syscall is not None:
        say(f"in the system call {thread.syscall.name or thread.syscall.nr}")
    doubt = [str(thread.label)] if thread.label is not None else []
    doubt += [f"its stack ends early: {thread.unwind}"] if thread.unwind != "complete" else []
    if doubt:
        say(f"stack: {', '.join(doubt)}", "dim")
    rows.append(plain(""))
    for frame in thread.kernel_frames:
        say(str(frame), "dim", "      [kernel] ", " " * 17)
    for place, frame in enumerate(thread.frames):
        where = f"  ({frame.source})" if frame.source else ""
        significant = display(frame) in analysis.places[index]
        say(f"{frame}{where}", "bold" if significant else "", f"  #{place:<3} ", " " * 9)
    if not thread.frames:
        say("(no frame could be read)", "dim")
    return rows


def _lock(analysis: Analysis, index: int) -> Lock | None:
    """Return the lock that a thread waits for, where that is not just its futex word."""
    number = analysis.capture.threads[index].lock
    if number is None or not 0 <= number < len(analysis.capture.locks):
        return None
    lock = analysis.capture.locks[number]
    return None if lock.kind in (LockKind.COND, LockKind.SEM) else lock


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"
