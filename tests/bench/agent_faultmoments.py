# SPDX-License-Identifier: Apache-2.0
"""Faults at random moments of stalls: whether the pager gets each stall exactly once, in time, and
its end only when it is over."""

from __future__ import annotations

import functools
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import msgspec
import pymysql

from tests.bench import progress
from tests.bench.agent_faultacts import KINDS, Act, Kind, Moment, Watched, account
from tests.bench.agent_faultkinds import SMALL_SERVER
from tests.bench.agent_faultpager import Post, pager
from tests.bench.agent_faultreferee import GOAL_SECONDS, Judgement, judge, outline
from tests.bench.agent_faultstalls import Stall, prepare
from tests.bench.stats import BenchError, Row, Section
from tests.support.servers import (
    MEMORY,
    PATIENCE,
    ChildEnded,
    Late,
    MariaDB,
    MySQL97,
    Postgres,
    SqlServer,
    wait_until,
)
from tests.support.stalls import Device, loop_device

__all__ = [
    "BEGIN",
    "END",
    "KINDS",
    "MOMENTS",
    "RESULTS",
    "Lane",
    "Options",
    "Outcome",
    "Results",
    "one_moment",
    "section",
    "write_page",
]

MOMENTS = 200
LANES = 3
"""Servers at once, each with its agent: most of a moment is waiting."""
LEAD = 1.0
STALL_SECONDS = (6.0, 11.0)
LONG_SECONDS, LONG_SHARE = (25.0, 40.0), 0.15
"""Some stalls are longer than what an agent may have a limit of time for."""
BEFORE, AFTER = -2.0, 2.0
"""Where a fault begins: from so long before the stall to so long after its end."""
SETTLE_SECONDS = 30.0
"""So long after everything is over is waited for what is late."""
WAITED_FOR = ("never over", "alerted 0 times")
"""What is wrong only until it has come."""
QUIET_SECONDS = 2.5
"""So long after the last end is waited for what is too much."""
PLACES = {"mariadb": 8, "mysql97": 1, "postgres": 1}
"""How often each server is chosen, where the kind has all."""
RESULTS = Path("build/agent-faults")
PAGE = Path("docs/operations.md")
BEGIN = "<!-- faults: made by ./scripts/bench agent --faults --page -->"
END = "<!-- /faults -->"


OTHERS = (pymysql.err.Error, subprocess.SubprocessError)


class Options(msgspec.Struct, frozen=True):
    """What is run."""

    moments: int = 0
    """0: as many as usual."""
    seed: int = 0
    """0: any."""
    lanes: int = LANES
    results: Path = RESULTS


class Outcome(msgspec.Struct, frozen=True):
    """One moment."""

    kind: str
    server: str
    seed: int
    judgement: Judgement
    got: str
    """What the pager got, in words."""
    leaks: tuple[str, ...]
    said: tuple[str, ...]

    @property
    def right(self) -> bool:
        return not self.judgement.wrong and not self.leaks


class Results(msgspec.Struct):
    """All moments of a run."""

    seed: int
    date: str
    outcomes: list[Outcome] = []
    broken: list[str] = []
    """Moments that the bench itself could not make, and why."""


class Lane:
    """Servers and a file system that one thread uses, moment after moment."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._servers: dict[str, SqlServer | Postgres] = {}
        self._device: Device | None = None

    def close(self) -> None:
        self._stack.close()

    def server(self, name: str) -> SqlServer | Postgres:
        """Return a running server with the agent's account. Raises: Unavailable."""
        if name not in self._servers:
            made = _make(name)
            with ExitStack() as stack:
                stack.enter_context(made)
                prepare(made)
                if isinstance(made, SqlServer):
                    made.execute(*account(made))
                self._stack.push(stack.pop_all())
            self._servers[name] = made
        return self._servers[name]

    def renew(self) -> None:
        """Forget the servers, after a moment that could not be made."""
        self._stack.close()
        self._servers.clear()
        self._device = None

    def device(self) -> tuple[Path, Callable[[], None], Callable[[], None]]:
        if self._device is None:
            self._device = self._stack.enter_context(loop_device())
        return self._device.folder, self._device.freeze_files, self._device.thaw


def _make(name: str) -> SqlServer | Postgres:
    match name:
        case "mariadb":
            return MariaDB(*SMALL_SERVER, "--max-connections=60", parent=MEMORY)
        case "mysql97":
            return MySQL97("--performance-schema=OFF", "--innodb-buffer-pool-size=8M")
        case _:
            return Postgres()


def one_moment(
    lane: Lane, name: str, seed: int, keep: Path | None = None, *, patient: bool = False
) -> Outcome:
    """Make one stall with a fault at a random moment; judge what the pager got.

    ``keep``: a folder for what was said of a moment that went wrong. ``patient``: the stall lasts
    until the fault is over and the pager has an alert, on a machine of any speed.
    """
    chance = random.Random(seed)
    kind = KINDS[name]
    server = lane.server(_choose(chance, kind))
    with (
        pager() as hook,
        ExitStack() as stack,
        tempfile.TemporaryDirectory(prefix="stallscope-moment-") as home,
    ):
        scene = Watched(server, Path(home), hook)
        moment = Moment(server, scene, hook, chance, lane.device, stack)
        act = kind.make(moment)
        try:
            act.prepare()
            act.start()
            _play(moment, act, patient=patient)
            _settle(moment, PATIENCE if patient else SETTLE_SECONDS)
        finally:
            act.close()
            scene.end()
        posts = _counted(hook.posts)
        outcome = Outcome(
            name,
            server.name,
            seed,
            judge(moment.truth, posts),
            outline(posts),
            tuple(moment.leaks),
            tuple(moment.said + [_said(post) for post in hook.posts]),
        )
        if keep is not None and not outcome.right:
            _keep(keep / f"{name}-{seed}", outcome, moment)
        return outcome


def _choose(chance: random.Random, kind: Kind) -> str:
    names = [name for name in kind.servers if _there(name)]
    return chance.choices(names, [PLACES[name] for name in names])[0]


@functools.cache
def _there(name: str) -> bool:
    return _make(name).missing() is None


def _counted(posts: Sequence[Post]) -> list[Post]:
    """Return what counts as notified: what was answered with success. Of an alert that the pager
    has got, and then refuses, the first attempt to say its end."""
    taken = [post for post in posts if post.taken]
    opened = {post.key for post in taken if post.event == "stall"}
    ended = {post.key for post in taken if post.event == "end"}
    tried: dict[str, Post] = {}
    for post in posts:
        if post.event == "end" and post.refused and post.key in opened - ended:
            tried.setdefault(post.key, post)
    return [*taken, *tried.values()]


def _play(moment: Moment, act: Act, *, patient: bool) -> None:
    """Do everything at its time: the stall, its end, the fault, its end."""
    chance = moment.chance
    lasts = chance.uniform(*(LONG_SECONDS if chance.random() < LONG_SHARE else STALL_SECONDS))
    stall = moment.stall()
    begin, finish = 0.0, lasts
    steps: list[tuple[float, int, Callable[[], None]]] = []
    for part in act.parts():
        at = chance.uniform(BEFORE, lasts + AFTER)
        ends = at + chance.uniform(*part.seconds)
        steps += [(at, 2, part.begin), (ends, 3, part.end)]
        if part.away:  # no stall can be made or ended while the server does not answer
            begin = ends + 0.2 if at < begin + 1.0 and ends > begin else begin
            finish = ends + 0.2 if at < finish < ends else max(finish, begin + STALL_SECONDS[0])
        if patient:
            finish = max(finish, ends + 0.2)
    steps += [
        (begin, 0, lambda: _begin(moment, stall)),
        (finish, 1, lambda: _finish(moment, stall, alerts=int(patient))),
    ]
    start = time.monotonic() + LEAD - min(due for due, *_ in steps)
    for due, _, step in sorted(steps, key=lambda step: step[:2]):
        _sleep(start + due)
        step()
    if act.again is not None:
        _sleep(time.monotonic() + chance.uniform(*act.again))
        act.another()
        another = moment.stall()
        _begin(moment, another)
        _sleep(time.monotonic() + chance.uniform(*STALL_SECONDS))
        _finish(moment, another, alerts=2 * patient)


def _begin(moment: Moment, stall: Stall) -> None:
    stall.begin()
    moment.note("clients wait")


def _finish(moment: Moment, stall: Stall, alerts: int = 0) -> None:
    """End a stall, once the pager has been sent so many alerts."""
    what = f"{alerts} alerts"
    wait_until(lambda: len({post.key for post in moment.pager.posts}) >= alerts, what)
    moment.truth.waits.append(stall.finish())
    moment.note("no client waits")


def _sleep(until: float) -> None:
    """Wait for a moment: it is the point of the bench."""
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(left, 0.5))


def _settle(moment: Moment, seconds: float) -> None:
    """Wait until each alert is over, or everything is very late; then for what is too much."""
    over = time.monotonic()

    def settled() -> bool:
        posts = moment.pager.posts
        found = judge(moment.truth, _counted(posts))
        return bool(posts) and not any(wrong.endswith(WAITED_FOR) for wrong in found.wrong)

    with suppress(Late):
        wait_until(settled, "every alert is over", seconds)
    _sleep(max(time.monotonic() + QUIET_SECONDS, over + GOAL_SECONDS))


def _said(post: Post) -> str:
    answer = "" if post.taken else " (not answered with success)"
    what = f"{post.event} {post.severity} {post.trigger} {post.key}: {post.title}"
    return f"{post.at:.2f} pager: {what}{answer}"


def _keep(folder: Path, outcome: Outcome, moment: Moment) -> None:
    """Keep what was said, for who looks for the cause."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    lines = [*outcome.judgement.wrong, *outcome.leaks, "", *sorted(outcome.said)]
    (folder / "timeline").write_text("\n".join(lines) + "\n")
    log = moment.scene.home / "agent.log"
    if log.exists():
        shutil.copy(log, folder / "agent.log")
    (folder / "config").write_text(moment.scene.config())


def section(options: Options, only: Sequence[str] = (), *, quick: bool = False) -> Section:
    """Run all moments, in lanes, of all kinds or of these; keep the results. ``quick``: one of
    each kind."""
    names = [name for name in KINDS if not only or name in only]
    seed = options.seed or random.randrange(1, 1 << 32)
    print(f"seed {seed}", file=sys.stderr)
    chance = random.Random(seed)
    # Each kind about as often as any other, in a random order.
    count = options.moments or (len(names) if quick else MOMENTS)
    plan = [(names[n % len(names)], chance.getrandbits(32)) for n in range(count)]
    chance.shuffle(plan)
    if count == 1:  # to look into one of them
        plan = [(names[0], seed)]
    results = Results(seed, time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()))
    todo = iter(enumerate(plan, 1))
    locked = threading.Lock()

    def work() -> None:
        lane = Lane()
        try:
            while True:
                with locked:
                    number, (name, of_one) = next(todo, (0, ("", 0)))
                if not name:
                    return
                progress(f"moment {number} of {len(plan)}: {name}")
                try:
                    outcome = one_moment(lane, name, of_one, options.results / "wrong")
                except (Late, ChildEnded, OSError, AssertionError, *OTHERS) as error:
                    with locked:
                        results.broken.append(
                            f"{name} (seed {of_one}): {type(error).__name__}: {error}"
                        )
                    lane.renew()
                    continue
                with locked:
                    results.outcomes.append(outcome)
                    save(results, options.results)
        finally:
            lane.close()

    with ThreadPoolExecutor(options.lanes) as threads:
        for future in [threads.submit(work) for _ in range(min(options.lanes, len(plan)))]:
            future.result()
    save(results, options.results)
    return as_section(results)


def save(results: Results, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.json").write_bytes(msgspec.json.format(msgspec.json.encode(results)) + b"\n")


def as_section(results: Results) -> Section:
    """Return the table of all kinds."""
    outcomes = results.outcomes
    rows = []
    for name, kind in KINDS.items():
        of_kind = [one for one in outcomes if one.kind == name]
        if of_kind:
            rows.append(Row(f"{name}: {kind.what}", _cells(of_kind)))
    stalled = sum(one.judgement.ends_while_stalled for one in outcomes)
    wrong = [one for one in outcomes if not one.right]
    return Section(
        "agent-moments",
        f"Faults at {len(outcomes)} random moments of stalls",
        tuple(rows),
        checks=(
            "the clients that wait are the bench's own: it knows when each began and stopped",
            f"seed {results.seed}, {results.date}",
        ),
        goals=(
            ("each stall alerted exactly once", all(one.judgement.once for one in outcomes)),
            (
                "each alert over, and only when its stall was",
                all(one.judgement.only_when_over for one in outcomes),
            ),
            (f"{stalled} ends while a client waited", stalled == 0),
            (
                f"within {GOAL_SECONDS:g} s of either, or of the fault's end",
                all(
                    late <= GOAL_SECONDS
                    for one in outcomes
                    for late in (*one.judgement.begin_late, *one.judgement.end_late)
                ),
            ),
            (f"{len(wrong)} moments with anything wrong", not wrong),
        ),
        left_out=tuple(results.broken),
        notes=tuple(
            f"{one.kind} (seed {one.seed}, {one.server}): "
            + "; ".join((*one.judgement.wrong, *one.leaks))
            for one in wrong
        ),
    )


def _cells(outcomes: Sequence[Outcome]) -> dict[str, str]:
    judged = [one.judgement for one in outcomes]
    return {
        "runs": str(len(outcomes)),
        "once": str(sum(one.once for one in judged)),
        "over when it was": str(sum(one.only_when_over for one in judged)),
        "ends while stalled": str(sum(one.ends_while_stalled for one in judged)),
        "begin late, median and worst": _late([s for one in judged for s in one.begin_late]),
        "end late": _late([s for one in judged for s in one.end_late]),
        "repeated": str(sum(one.repeated for one in judged)),
        "all right": str(sum(one.right for one in outcomes)),
        "the pager got, most often": _usual(outcomes),
    }


def _usual(outcomes: Sequence[Outcome]) -> str:
    return Counter(one.got for one in outcomes).most_common(1)[0][0]


def _late(seconds: Sequence[float]) -> str:
    if not seconds:
        return "-"
    return f"{statistics.median(seconds):.1f} s, {max(seconds):.1f} s"


def table(results: Results) -> list[str]:
    """Return the table of docs/operations.md, as lines of Markdown."""
    head = (
        "what happens in a stall",
        "what the pager gets",
        "most often",
        "runs",
        "alerted once, and over only when it was",
        "begin, worst",
        "end, worst",
    )
    lines = [_line(head), _line(["---"] * len(head))]
    for name, kind in KINDS.items():
        outcomes = [one for one in results.outcomes if one.kind == name]
        if not outcomes:
            continue
        judged = [one.judgement for one in outcomes]
        got = f"`{_usual(outcomes)}`"
        right = sum(one.once and one.only_when_over for one in judged)
        begin = max((s for one in judged for s in one.begin_late), default=0.0)
        end = max((s for one in judged for s in one.end_late), default=0.0)
        times = (f"{begin:.1f} s", f"{end:.1f} s")
        lines.append(_line((kind.what, kind.promise, got, str(len(judged)), str(right), *times)))
    return lines


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def write_page(folder: Path, page: Path = PAGE) -> None:
    """Write the results of a folder into the page. Raises: BenchError where there are none."""
    try:
        data = (folder / "results.json").read_bytes()
    except OSError as error:
        raise BenchError(f"{folder}/results.json: {error.strerror}: run --faults first") from error
    results = msgspec.json.decode(data, type=Results)
    page.write_text(with_table(page.read_text(), results))


def with_table(text: str, results: Results) -> str:
    """Return the page with the table of these results between its marks."""
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    made = f"{len(results.outcomes)} moments, seed {results.seed}, {results.date}."
    return "\n".join([before + BEGIN, "", made, "", *table(results), "", END]) + after
