# SPDX-License-Identifier: Apache-2.0
"""The results of the analysis of captures: the values that reporters print.

`stallscope.reporters.json` turns it into the schema ``stallscope.analysis/1``.
"""

from __future__ import annotations

import msgspec

from stallscope.model.capture import Capture, Lock

__all__ = [
    "STALL_SHARE",
    "Age",
    "Analysis",
    "Blocker",
    "CpuShare",
    "CpuUse",
    "Edge",
    "Ending",
    "Finding",
    "Group",
    "Impact",
    "Link",
    "Moment",
    "Seen",
    "Share",
    "Signs",
    "State",
    "WaiterGroup",
]

State = str
"""``idle``, ``running``, ``waiting``; ``incomplete``: frames of its stack were lost, ``unseen``: it
sleeps in a call that is not watched."""

STALL_SHARE = 0.3
"""Of the threads that have something to do: a server that loses fewer answers most statements."""
STALL_THREADS = 3
"""Two threads that wait for each other's row are how transactions work."""


class Group(msgspec.Struct, frozen=True):
    """Threads with one stack. ``frames`` are names for people, innermost first."""

    count: int
    state: State
    frames: tuple[str, ...]
    threads: tuple[int, ...] = ()
    """Indexes into Capture.threads."""
    idle: bool = False


class Moment(msgspec.Struct, frozen=True):
    """What all threads did in one capture of a burst. ``ran``: the stacks that the samples since
    the capture before show, and how many samples have each."""

    time_ns: int | None
    groups: tuple[Group, ...]
    ran: tuple[tuple[int, tuple[str, ...]], ...] = ()


class Share(msgspec.Struct, frozen=True):
    """How many threads that are not idle are in this subsystem."""

    subsystem: str
    threads: int
    share: float


class Edge(msgspec.Struct, frozen=True):
    """``waiter`` waits for ``owner`` (indexes into Capture.threads), according to ``source``."""

    waiter: int
    owner: int
    lock: int | None
    source: str


class Blocker(msgspec.Struct, frozen=True):
    """The thread that the others wait for. ``source``: what names it, as of an Edge."""

    tid: int
    name: str
    frames: tuple[str, ...]
    state: State = "?"
    sql: str | None = None
    source: str = "futex"
    certain: bool = True
    """False: chosen because no other thread is left; it can be another one."""
    thread: int | None = None
    """Index into Capture.threads."""


class WaiterGroup(msgspec.Struct, frozen=True):
    """How many threads wait with these frames, innermost first."""

    count: int
    frames: tuple[str, ...]


class Link(msgspec.Struct, frozen=True):
    """One link of the chain, the root first, the farthest victims last. ``tid``: its blocker."""

    signature: str
    threads: int
    tid: int | None = None


class Seen(msgspec.Struct, frozen=True):
    """What the captures and samples of a burst show of a finding together."""

    captures: int
    """In how many captures it is."""
    of: int
    """How many captures there are."""
    lasting: int = 0
    """Threads that were in one wait through half of the captures and more."""
    cpu: float | None = None
    """The share of the server's samples that its holders are; None: nothing was sampled."""
    holders: int = 0
    """Threads that were seen as its holders."""
    profile: tuple[tuple[str, float], ...] = ()
    """Where they spend their time: functions with their share, the most first."""
    passed_on: float | None = None
    """Waits for its lock that ended each second, at least; None: not known."""


class CpuShare(msgspec.Struct, frozen=True):
    """A part of what a server ran: by signature, where one explains it, else by function."""

    where: str
    share: float
    signature: str | None = None


class CpuUse(msgspec.Struct, frozen=True):
    """What a server ran during a burst. ``busy``: CPUs on average, of ``cpus``."""

    samples: int
    busy: float
    cpus: int
    shares: tuple[CpuShare, ...] = ()
    lost: int = 0


class Impact(msgspec.Struct, frozen=True):
    """How much of the server a finding holds up, those behind its victims included."""

    threads: float = 0.0
    """At one moment: of an aggregate of samples the average."""
    share: float = 0.0
    """Of the threads that have something to do."""
    time_s: float | None = None
    """The sum of how long these threads are known to have waited; None: nothing is known."""

    clients: bool = False
    """No client gets in, or none can write, whatever the threads do."""
    root: bool = False
    """It is the cause of what the stacks show."""

    @property
    def is_stall(self) -> bool:
        """Return whether so much of the server stands still that its users see it."""
        return self.clients or (self.share >= STALL_SHARE and self.threads >= STALL_THREADS)

    @property
    def kind(self) -> str:
        """Return ``stall``, ``wait`` or ``hint``."""
        if self.is_stall:
            return "stall"
        return "wait" if self.share >= STALL_SHARE or self.threads >= STALL_THREADS else "hint"


class Signs(msgspec.Struct, frozen=True):
    """What speaks for a name and against it, each from 0 to 1."""

    share: float = 0.0
    """How many of the threads that have something to do it explains."""
    count: float = 0.0
    """How many threads they are, as a logarithm: 1 is 64 and more."""
    few: float = 0.0
    """They are fewer than the signature needs, in a dump of a whole server."""
    few_chosen: float = 0.0
    """The same in a dump without idle threads: somebody has chosen what it shows."""
    single: float = 0.0
    """It is one thread, and one is enough for the signature."""
    chosen: float = 0.0
    blocker: float = 0.0
    """A thread is known to block them."""
    likely: float = 0.0
    """A thread is left over as their blocker."""
    lock: float = 0.0
    """Most wait for a lock whose name the signature claims."""
    lasting: float = 0.0
    """One of them is known to have waited for long."""
    listed: float = 0.0
    """The server itself lists the waits: a thread there has spun without success."""
    brief: float = 0.0
    """All of them are known to be short."""
    rival: float = 0.0
    """The frames fit another signature as well."""
    strange: float = 0.0
    """Frames that nobody knows stand in the stacks: their number for each thread."""
    incomplete: float = 0.0
    """The share of threads of which frames were lost."""
    lone: float = 0.0
    """Nobody waits: the holder is seen alone."""
    idle_work: float = 0.0
    """Busy work of few threads."""
    unqueued: float = 0.0
    """It is said to prolong other waits, and no queue of its own shows."""
    generic: float = 0.0
    """The name is one of any program: a convoy, a device, CPUs."""
    nearer: float = 0.0
    """Another wait of the dump is nearer to a cause, and no smaller."""


class Finding(msgspec.Struct, frozen=True):
    """One stall, named or not, with its evidence. ``confidence``: how surely its name is right, 0
    to 1; ``impact``: how much of the server it holds up."""

    signature: str | None
    """None: a stall that no signature knows."""
    title: str
    confidence: float
    threads: int
    blocker: Blocker | None
    waiters: tuple[WaiterGroup, ...]
    locks: tuple[Lock, ...]
    chain: tuple[Link, ...]
    evidence: tuple[str, ...]
    remedies: tuple[str, ...] = ()
    references: tuple[str, ...] = ()
    against: tuple[str, ...] = ()
    """Evidence against it, and what is unknown."""
    meaning: str = ""
    victim_of: str | None = None
    """The finding among whose waiters this one's blocker is."""
    members: tuple[int, ...] = ()
    """Its threads, without the blocker: indexes into Capture.threads."""
    seen: Seen | None = None
    """How all captures of a burst show it; None: there is one capture."""
    pending: int | None = None
    """The waiter that the others queue behind, such as a DDL: index into Capture.threads."""
    whole: bool = False
    """The whole process is in this state, with all of its threads."""
    kept: bool = False
    """What the others wait for is free once the blocker's connection, or its statement, ends."""
    cancels: bool = False
    """The others go on once the pending statement gives up."""
    impact: Impact = Impact()
    signs: Signs = Signs()
    """What the confidence is made of."""
    headline: str = ""
    """What the server's answers show, where no stack does: in place of how many threads wait."""


class Age(msgspec.Struct, frozen=True):
    """How long a stall has lasted."""

    ns: int
    at_least: bool = False
    """It can be older: nothing shows when it began."""


class Ending(msgspec.Struct, frozen=True):
    """A statement that ends the stall when it is pasted into a client of the server."""

    statement: str
    effect: str
    """What it does, and to whom; begins in lower case, without a full stop."""
    connection: int | None = None
    """The connection that it ends or interrupts; of PostgreSQL the id of the process."""
    certain: bool = True
    """False: its connection is the likely holder."""
    in_shell: bool = False
    """It is a command for a shell on the server's host, not a statement."""
    asks: bool = False
    """It changes nothing: its answer is the statement that ends the stall."""


class Analysis(msgspec.Struct, frozen=True):
    """The analysis of one capture; the verdict is the first finding."""

    capture: Capture
    findings: tuple[Finding, ...]
    groups: tuple[Group, ...]
    states: tuple[State, ...]
    """One per thread of the capture."""
    places: tuple[tuple[str, ...], ...] = ()
    """One per thread: the frames that show what it does, innermost first, else the server's own
    text."""
    edges: tuple[Edge, ...] = ()
    cycles: tuple[tuple[int, ...], ...] = ()
    """TIDs of threads that wait for each other in a cycle; one TID: it waits for itself."""
    server: str | None = None
    """``mysql``, ``mariadb``, ``postgres``, ``mongodb`` or None."""
    version: str | None = None
    subsystems: tuple[Share, ...] = ()
    cpu: CpuUse | None = None
    """What ran between the captures of a burst; None: nothing was sampled."""
    captures: int = 1
    """From how many captures the verdict is drawn; ``capture`` is the one that shows it best."""
    inputs: tuple[dict[str, str | int], ...] = ()
    age: Age | None = None
    """Of the verdict; None: nothing says it."""
    endings: tuple[Ending, ...] = ()
    """Of the verdict, the surest first; empty: nothing that can be pasted ends it."""
    moments: tuple[Moment, ...] = ()
    """Where they were asked for: the captures that the verdict is drawn from, in the order of
    time."""
    waiting_in: tuple[WaiterGroup, ...] = ()
    """Where threads wait for what others hold, or have work and wait; most first. ``frames`` as in
    ``places``."""
