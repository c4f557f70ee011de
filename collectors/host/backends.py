# SPDX-License-Identifier: Apache-2.0
"""What the backends of a PostgreSQL server do, by the titles that they give their processes.

PostgreSQL keeps them up to date (update_process_title, on by default): `postgres: app shop
10.0.0.7(51324) UPDATE waiting`. Reading them needs no login, costs the server nothing, and works
where it answers nobody. Where SQL answers, it counts: pids there are those of the server's own
namespace, and a statement that waits a moment is seen as often.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from stallscope.base.errors import StallscopeError
from stallscope.collectors.host.collecting import HostCollector, Pace

__all__ = ["Backends", "activity"]

MAX_BACKENDS = 10_000
MAX_TITLE = 1024

# src/backend/utils/misc/ps_status.c and src/backend/tcop/backend_startup.c: user, database, client.
_CLIENT = re.compile(
    r"postgres: (?:.{0,256}?: )?(\S{1,64}) (\S{1,64}) (?:\[local\]|\S{1,256}\(\d{1,5}\)) ?(.*)",
    re.DOTALL,
)
_SENDER = "walsender"
"""A replica's connection: this comes before its user."""
_WAITING = " waiting"
"""WaitOnLock() adds it while the backend waits for a lock of a table, row or transaction."""
_IDLE = "idle"
_IN_TRANSACTION = "idle in transaction"
_STARTING = ("authentication", "startup", "initializing")


def activity(title: str) -> str | None:
    """Return ``idle``, ``idle_in_transaction``, ``active`` or ``waiting``; None: it is no backend
    of a client, or not yet."""
    found = _CLIENT.fullmatch(title.strip())
    if found is None or found.group(1) == _SENDER:
        return None
    doing = found.group(3)
    if doing.startswith(_STARTING) or not doing:
        return None
    if doing.endswith(_WAITING):
        return "waiting"
    if doing == _IDLE:
        return "idle"
    return "idle_in_transaction" if doing.startswith(_IN_TRANSACTION) else "active"


class Backends(HostCollector):
    """``backends.total``, ``.active`` (those that wait included), ``.waiting``, ``.idle``,
    ``.idle_in_transaction``: connections of clients. ``.blocked_s``: for how long the one that has
    waited longest for a lock has done so, as far as polls have shown it."""

    name = "backends"
    rest_interval = 0.0
    """A stall of PostgreSQL has no other sign that is read at rest."""

    def __init__(
        self,
        pid: int,
        ask: Callable[[], dict[int, str]] | None = None,
        seconds: float = 0.0,
        *,
        proc: Path = Path("/proc"),
    ) -> None:
        """``ask``: returns what each backend does according to the server itself, within so many
        ``seconds``. It is not asked at rest, as long as titles say that nobody waits."""
        super().__init__()
        self.deadline += seconds
        self._ask = ask
        self._proc = proc
        self._children = self.keep(proc / str(pid) / "task" / str(pid) / "children", 1 << 20)
        self._pace = Pace()
        self._values: dict[str, float] = {}
        self._waiting: dict[int, int] = {}
        """When each backend that waits was first seen to wait, by CLOCK_MONOTONIC."""

    def read(self, clock_ns: int) -> dict[str, float]:
        """Read the titles, at most for the share of a core that collectors have, and ask."""
        if not self._pace.due(clock_ns, self.share):
            return dict(self._values)
        pids = [int(word) for word in self._children.read().split()[:MAX_BACKENDS]]
        titles = [(pid, self._title(pid)) for pid in pids]
        doing = {pid: found for pid, title in titles if (found := activity(title)) is not None}
        self._pace.done(clock_ns)
        if self._ask is not None and (not self.at_rest or not doing or "waiting" in doing.values()):
            # Without an answer the titles count.
            with contextlib.suppress(StallscopeError):
                doing = self._ask()
        self._values = self._counted(doing, clock_ns)
        return dict(self._values)

    def _counted(self, doing: dict[int, str], clock_ns: int) -> dict[str, float]:
        counts = Counter(doing.values())
        waiting = [pid for pid, what in doing.items() if what == "waiting"]
        self._waiting = {pid: self._waiting.get(pid, clock_ns) for pid in waiting}
        since = min(self._waiting.values(), default=clock_ns)
        names = ("idle", "idle_in_transaction", "waiting")
        values = {f"backends.{name}": float(counts[name]) for name in names}
        values["backends.active"] = float(counts["active"] + counts["waiting"])
        values["backends.total"] = float(sum(counts.values()))
        values["backends.blocked_s"] = (clock_ns - since) / 1e9
        return values

    def _title(self, pid: int) -> str:
        with contextlib.suppress(OSError):
            path = self._proc / str(pid) / "cmdline"
            with path.open("rb") as file:
                return file.read(MAX_TITLE).split(b"\0")[0].decode("utf-8", "replace")
        return ""
