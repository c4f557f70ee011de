# SPDX-License-Identifier: Apache-2.0
"""What the backends of a PostgreSQL server do, by the titles that they give their processes.

PostgreSQL keeps them up to date (update_process_title, on by default): `postgres: app shop
10.0.0.7(51324) UPDATE waiting`. Reading them needs no login, and works where the server answers
nobody.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from pathlib import Path

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
    ``.idle_in_transaction``: connections of clients."""

    name = "backends"
    rest_interval = 0.0
    """A stall of PostgreSQL has no other sign that is read at rest."""

    def __init__(self, pid: int, *, proc: Path = Path("/proc")) -> None:
        super().__init__()
        self._proc = proc
        self._children = self.keep(proc / str(pid) / "task" / str(pid) / "children", 1 << 20)
        self._pace = Pace()
        self._values: dict[str, float] = {}

    def read(self, clock_ns: int) -> dict[str, float]:
        """Read the titles, at most for the share of a core that collectors have."""
        if not self._pace.due(clock_ns, self.share):
            return dict(self._values)
        pids = [int(word) for word in self._children.read().split()[:MAX_BACKENDS]]
        counts = Counter(found for pid in pids if (found := activity(self._title(pid))) is not None)
        self._pace.done(clock_ns)
        names = ("idle", "idle_in_transaction", "waiting")
        self._values = {f"backends.{name}": float(counts[name]) for name in names}
        self._values["backends.active"] = float(counts["active"] + counts["waiting"])
        self._values["backends.total"] = float(sum(counts.values()))
        return dict(self._values)

    def _title(self, pid: int) -> str:
        with contextlib.suppress(OSError):
            path = self._proc / str(pid) / "cmdline"
            with path.open("rb") as file:
                return file.read(MAX_TITLE).split(b"\0")[0].decode("utf-8", "replace")
        return ""
