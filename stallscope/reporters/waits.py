# SPDX-License-Identifier: Apache-2.0
"""The waits of a server for people: waits in flight, kinds, locks and files by wait time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec

from stallscope.analyzers.excerpts import Excerpts
from stallscope.base.text import clean, end_of_name
from stallscope.model.waitkinds import IDLE_KINDS, LOST, SHOWN_KINDS
from stallscope.model.waitlines import (
    ROW_LOCK_FUNCTIONS,
    Event,
    HolderStack,
    Key,
    KindWaits,
    ProgramState,
    WaiterStack,
    WaitLine,
)
from stallscope.reporters.lines import Line, short_name, threads_text, wrap
from stallscope.reporters.units import LEGEND, bars, duration, number, size
from stallscope.reporters.waitkeys import arrange, same_holders, same_waiters, waited
from stallscope.server.families import family

__all__ = ["Options", "fit", "render"]

_FRAMES = 6
_STACKS = 2
"""The most stacks of waiters, and of holders, below one lock or file."""
_EVENTS = 10
UPROBES = "uprobes"
MANY = 2.0
"""Threads on average: so many wait for one lock or file although no wait is long."""
_DEFAULT_TOP = 10
_PATH, _LEAST_PATH = 60, 24
"""Characters of a file's name: without a limit of width, and the least."""


class Options(msgspec.Struct, frozen=True):
    """How much is shown, and of what."""

    server: str
    """Name and process id."""
    width: int = 80
    top: int = _DEFAULT_TOP
    """Locks and files; 0 is all."""
    stacks: int = 3
    """Of them, how many with the stacks of waiters and holders."""
    blocks: bool = True
    """The output has block characters."""
    clock: str = ""
    """Time of day, to begin with."""
    watched: float = 0.0
    """Seconds since the start."""
    programs: tuple[ProgramState, ...] = ()
    """Those of the first line."""
    uprobes: bool = True
    """The user requested them."""
    source: str | None = None
    """That of the first line."""
    cost: str = ""
    """What watching costs, for the first line; empty: said already."""


def render(line: WaitLine, options: Options, excerpts: Excerpts) -> list[Line]:
    """Return one screen: an interval, or the totals; escaped for a terminal."""
    return list(_Screen(line, options, excerpts).lines())


def fit(lines: list[Line], height: int) -> list[Line]:
    """Cut a screen to the rows of a terminal."""
    if len(lines) <= height:
        return lines
    cut = len(lines) - height + 1
    return [*lines[: height - 1], Line(f"… {cut} more lines (enlarge the terminal)", "dim")]


class _Screen:
    def __init__(self, line: WaitLine, options: Options, excerpts: Excerpts) -> None:
        self.line = line
        self.options = options
        self.excerpts = excerpts
        self.keys = arrange(line.keys)
        self.longest: dict[str, float] = {}
        for key in self.keys:
            so_far = self.longest.get(key.kind, 0.0)
            self.longest[key.kind] = max(so_far, key.longest_in_flight_ms)
        self.several = len({key.pid for key in line.keys}) > 1

    def lines(self) -> Iterator[Line]:
        if self.options.cost:
            yield from self._wrap(f"{self.options.cost}.", style="yellow")
        yield from self._head()
        yield from self._kinds()
        yield from self._lost()
        yield from self._keys()
        yield from self._events()
        yield from self._server()
        yield from self._program_lines()

    def _head(self) -> Iterator[Line]:
        now, ended = self._now(), self._ended()
        many = "" if now or ended else self._many()
        hidden = self._hidden()
        style = "bold red" if now or many else "bold yellow" if ended or hidden else "bold green"
        facts = [now, ended] if self.line.final else [now or ended]
        text = "; ".join(filter(None, facts)) or many or self._quiet()
        clock = f"{self.options.clock} " if self.options.clock else ""
        yield from self._wrap(f"{clock}{self.options.server}: {text}.", style=style)
        if hidden:
            yield from self._wrap(f"Not seen here: {hidden}", hang="  ", style="yellow")
        yield from self._wrap(f"{self._span()}; {self._thresholds()}{self._by()}", style="dim")

    def _now(self) -> str:
        """Say for what most threads wait, where one of them is above the threshold."""
        stuck = [key for key in self.keys if key.kind not in IDLE_KINDS and self._is_stuck(key)]
        kinds = {n: k.in_flight for n, k in self.line.kinds.items() if n not in IDLE_KINDS}
        kind = max(kinds, key=lambda name: kinds[name], default="")
        many = kinds.get(kind, 0)
        key = max(stuck, key=lambda key: (key.in_flight, waited(key)), default=None)
        if key is not None and 2 * key.in_flight >= many:
            count, what, longest = key.in_flight, self._what(key), key.longest_in_flight_ms
            known = count
        elif many:
            count, what, longest = many, kind, self.longest.get(kind, 0.0)
            # Waits that began before the watching have no line of their own, and no length.
            known = sum(key.in_flight for key in self.keys if key.kind == kind)
        else:
            return ""
        least = "at least " if known < count else ""
        since = f", the longest for {least}{duration(longest)}" if longest else ""
        return f"{threads_text(count)} {'waits' if count == 1 else 'wait'} for {what} now{since}"

    def _ended(self) -> str:
        """Return how many waits above the threshold have ended, and for what most of the time."""
        over = sum(kind.over for name, kind in self.line.kinds.items() if name not in IDLE_KINDS)
        if not over:
            return ""
        text = "1 wait was" if over == 1 else f"{number(over)} waits were"
        text += " above the threshold"
        key = next((key for key in self.keys if key.over and key.kind not in IDLE_KINDS), None)
        if key is not None:
            text += f", longest in total for {self._what(key)}, the longest {duration(key.max_ms)}"
        return text

    def _many(self) -> str:
        """Say for what threads wait all the time, where no single wait is long: a lock that many
        want, each for a moment."""
        key = next((key for key in self.keys if key.kind not in IDLE_KINDS), None)
        at_once = 0.0 if key is None else key.total_ms / max(1.0, self.line.seconds * 1000)
        if key is None or at_once < MANY:
            return ""
        return (
            f"{at_once:.0f} threads at a time wait for {self._what(key)}, {number(key.count)} waits"
            f" of {duration(key.total_ms)} together, none above its threshold"
        )

    def _quiet(self) -> str:
        """Say that nothing was seen, and how many threads sleep where idle ones do."""
        asleep = sum(k.in_flight for name, k in self.line.kinds.items() if name in IDLE_KINDS)
        text = "no wait that is seen here exceeded its threshold"
        if asleep:
            text += f"; {threads_text(asleep)} sleep{'s' if asleep == 1 else ''} in conditions"
        return text

    def _hidden(self) -> str:
        """Say which waits look like idle threads; empty: none, or this is no known server."""
        found = {family(target.exe, target.comm) for target in self.line.targets}
        kinds: list[str] = []
        if found & {"mysql", "mariadb"}:
            works = all(p.ok for p in self.options.programs if p.name == UPROBES)
            seen = self.line.kinds if works else {}
            kinds += [] if "row-lock" in seen and not self._hides_row_locks() else ["rows"]
            kinds += [] if "metadata-lock" in seen else ["metadata locks", "GET_LOCK"]
        if "postgres" in found:
            kinds += ["rows", "tables", "transactions", "LWLocks"]
        if not kinds:
            return ""
        pid = self.line.targets[0].pid
        return (
            f"waits for {', '.join(kinds)}: they sleep as idle threads do."
            f" `stallscope snap -p {pid}` names them."
        )

    def _is_stuck(self, key: Key) -> bool:
        kind = self.line.kinds.get(key.kind)
        limit = None if kind is None else kind.threshold_ms
        return key.in_flight > 0 and limit is not None and key.longest_in_flight_ms >= limit

    def _span(self) -> str:
        seconds = self.line.seconds
        if self.line.final:
            return f"totals of {duration(seconds * 1000)}"
        return f"last {duration(seconds * 1000)} of {duration(self.options.watched * 1000)} watched"

    def _thresholds(self) -> str:
        of = {
            name: kind.threshold_ms
            for name, kind in self.line.kinds.items()
            if kind.threshold_ms is not None and name not in IDLE_KINDS
        }
        if not of:
            return "no thresholds"
        usual, _ = Counter(of.values()).most_common(1)[0]
        others = [f"{clean(name)} {duration(ms)}" for name, ms in of.items() if ms != usual]
        return "; ".join([f"threshold {duration(usual)}", *others])

    def _by(self) -> str:
        if self._inproc:
            return "; source: inproc, the library in the server"
        if self.line.sampled:
            return f"; {self._sampled()}"
        if self.line.in_flight_by == "timer":
            return ""
        return "; waits in flight are found by a scan: this kernel has no BPF timers"

    def _sampled(self) -> str:
        """Return how often threads are polled; waits shorter than the longest pause can be
        missed."""
        every = (self.line.interval_ns or 0) / 1e6
        longest = (self.line.longest_interval_ns or 0) / 1e6
        late = f", with a longest pause of {duration(longest)}" if longest >= 2 * every else ""
        return f"sampled: /proc is polled every {duration(every)}{late}; short waits are missed"

    @property
    def _inproc(self) -> bool:
        return (self.line.source or self.options.source) == "inproc"

    def _kinds(self) -> Iterator[Line]:
        head = f"{'count':>8} {'total':>8} {'longest':>8} {'over':>6} {'now':>5} {'bytes':>8}"
        yield Line("")
        yield Line(f"{'Waits':<17} {head}  how long", "bold")
        for name, kind in sorted(self.line.kinds.items(), key=self._kind_order):
            if kind.count or kind.in_flight or name in SHOWN_KINDS:
                yield self._kind(name, kind)
        yield Line(f"  how long: {LEGEND}"[: self.options.width], "dim")

    def _kind_order(self, item: tuple[str, KindWaits]) -> tuple[bool, float, str]:
        name, kind = item
        return name in IDLE_KINDS, -(kind.total_ms + self.longest.get(name, 0.0)), name

    def _kind(self, name: str, kind: KindWaits) -> Line:
        style = "dim" if name in IDLE_KINDS else "red" if kind.in_flight else ""
        shown = f"{clean(name)} (idle)" if name in IDLE_KINDS else clean(name)
        amount = "" if kind.bytes is None else size(kind.bytes)
        histogram = bars(kind.histogram, blocks=self.options.blocks) if kind.histogram else ""
        longest = max(kind.max_ms, self.longest.get(name, 0.0))
        numbers = _numbers(kind.count, kind.total_ms, longest)
        text = (
            f"  {shown[:15]:<15} {numbers} {number(kind.over):>6} {number(kind.in_flight):>5}"
            f" {amount:>8}  {histogram}"
        )
        return Line(text.rstrip(), style)

    def _lost(self) -> Iterator[Line]:
        lost = {cause: count for cause, count in self.line.lost.items() if count}
        yield Line("")
        if not lost:
            yield Line("Nothing was lost.")
            return
        yield Line("Lost since the start", "bold yellow")
        for cause, count in sorted(lost.items()):
            meaning = LOST.get(cause)
            text = f"{number(count)} {cause}" + (f": {meaning}" if meaning else "")
            yield from self._wrap(text, indent="  ", hang="    ")

    def _keys(self) -> Iterator[Line]:
        if not self.keys:
            return
        top = self.options.top or len(self.keys)
        yield Line("")
        yield Line(f"  {'count':>8} {'total':>8} {'longest':>8} {'now':>5}  lock or file", "bold")
        for place, key in enumerate(self.keys[:top]):
            yield from self._key(key)
            if place < self.options.stacks and key.kind not in IDLE_KINDS:
                yield from self._stacks(key)
        if len(self.keys) > top:
            yield Line(f"  … {len(self.keys) - top} more (--top {len(self.keys)} shows them)")

    def _key(self, key: Key) -> Iterator[Line]:
        numbers = _numbers(key.count, key.total_ms, key.longest_ms)
        head = f"  {numbers} {number(key.in_flight):>5}  "
        what = self._what(key, self.options.width - len(head))
        if self.several and key.pid is not None:
            what += f" (pid {key.pid})"
        if key.owner_tid:
            what += f", held by thread {key.owner_tid}"
        style = "dim" if key.kind in IDLE_KINDS else "red" if self._is_stuck(key) else ""
        yield from self._wrap(what, indent=head, hang=" " * len(head), style=style)

    def _what(self, key: Key, room: int = 0) -> str:
        """Return kind, class and name; a path keeps its end where there is too little room."""
        if key.name == f"{key.kind}s":  # waits without a name have this key
            return f"{key.kind} (name unknown)"
        if not key.name.startswith(("/", ".../")):
            return f"{key.kind} {short_name(key.name)}"
        kind = key.kind if key.file_class in (None, "other") else f"{key.kind} {key.file_class}"
        room = max(_LEAST_PATH, room - len(kind) - 1) if room else _PATH
        return f"{kind} {end_of_name(clean(key.name), room)}"

    def _stacks(self, key: Key) -> Iterator[Line]:
        indent = " " * 6
        hang = " " * 10
        # Stacks without frames are counted among the losses.
        waiters = same_waiters(
            msgspec.structs.replace(stack, frames=self.excerpts.of_waiter(stack.frames)[:_FRAMES])
            for stack in key.waiters
            if stack.frames
        )
        holders = same_holders(
            msgspec.structs.replace(stack, frames=self.excerpts.of_waker(stack.frames)[:_FRAMES])
            for stack in key.holders
            if stack.frames
        )
        waiters.sort(key=lambda stack: (-stack.total_ms, -stack.count))
        holders.sort(key=lambda stack: -stack.count)
        for waiter in waiters[:_STACKS]:
            yield from self._wrap(self._waiter(waiter), indent=indent, hang=hang)
        for holder in holders[:_STACKS]:
            yield from self._wrap(self._holder(holder), indent=indent, hang=hang)

    def _waiter(self, waiter: WaiterStack) -> str:
        times = "1 wait" if waiter.count == 1 else f"{number(waiter.count)} waits"
        length = f", {duration(waiter.total_ms)}," if waiter.total_ms else ""
        where = _path(waiter.frames)
        return f"{times}{length} in {where}{_doubt(waiter.label)}"

    def _holder(self, holder: HolderStack) -> str:
        times = "" if holder.count == 1 else f" {number(holder.count)} times"
        last = "" if holder.count == 1 else ", last"
        name = f' "{holder.comm}"' if holder.comm else ""
        who = f"{last} by thread {holder.tid}{name}" if holder.tid else ""
        where = _path(holder.frames)
        return f"woken{times}{who}, in {where}{_doubt(holder.label)}"

    def _events(self) -> Iterator[Line]:
        events = self.line.events
        if events:
            yield Line("")
            yield Line("Waits above their threshold", "bold")
        for event in events[-_EVENTS:]:
            yield from self._wrap(_event(event), indent="  ", hang="    ")
        if len(events) > _EVENTS:
            yield Line(f"  … and {len(events) - _EVENTS} earlier (--json has all)")

    def _server(self) -> Iterator[Line]:
        hits = {name: one.count for name, one in self.line.server.items()}
        if any(hits.values()):
            yield Line("")
            text = ", ".join(f"{short_name(name)} {number(n)}" for name, n in hits.items() if n)
            yield from self._wrap(f"The server's own functions: {text}", hang="  ")

    def _program_lines(self) -> Iterator[Line]:
        missing = [
            f"{program.name}: {program.why_not or 'does not work here'}"
            for program in self.options.programs
            if not program.ok
        ]
        if self._hides_row_locks():
            missing.append(
                "row locks: this server has no symbols for InnoDB's functions, so threads"
                " that wait for a row look idle; install its debug symbols"
            )
        if missing:
            yield Line("")
            yield Line("Not watched", "bold")
        for text in missing:
            yield from self._wrap(text, indent="  - ", hang="    ")

    def _hides_row_locks(self) -> bool:
        has_uprobes = not self._inproc and not self.line.sampled
        asked = self.options.uprobes and has_uprobes and "row-lock" in self.line.kinds
        servers = {family(target.exe, target.comm) for target in self.line.targets}
        found = self.line.server.keys() & set(ROW_LOCK_FUNCTIONS)
        return asked and bool(servers & {"mysql", "mariadb"}) and not found

    def _wrap(
        self, text: str, *, indent: str = "", hang: str | None = None, style: str = ""
    ) -> Iterator[Line]:
        return wrap(text, self.options.width, indent=indent, hang=hang, style=style)


def _path(frames: Sequence[str]) -> str:
    return " < ".join(short_name(frame) for frame in frames)


def _doubt(label: str | None) -> str:
    return "" if label in (None, "verified") else f" [{label}]"


def _numbers(count: int, total_ms: float, max_ms: float) -> str:
    return f"{number(count):>8} {duration(total_ms):>8} {duration(max_ms):>8}"


def _event(event: Event) -> str:
    name = f' "{event.comm}"' if event.comm else ""
    who = f"thread {event.tid or '?'}{name}"
    if event.kind == "server":
        return f"{who}, in {short_name(event.name or '?')}: deadlock detected"
    what = event.kind if event.name is None else f"{event.kind} {short_name(event.name)}"
    if event.in_flight:
        others = f", {threads_text(event.waiters)} in all" if event.waiters > 1 else ""
        owner = f", held by thread {event.owner_tid}" if event.owner_tid else ""
        return f"{who} waits for {what} since {duration(event.length_ms)}{others}{owner}"
    waker = f", woken by thread {event.waker.tid}" if event.waker is not None else ""
    return f"{who} waited for {what}: {duration(event.length_ms)}{waker}"
