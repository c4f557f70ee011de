# SPDX-License-Identifier: Apache-2.0
"""What is at each path."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from stallscope.agent.http.commands import BusyError, CommandError, Commands
from stallscope.agent.liveness import AgentHealth
from stallscope.base import package
from stallscope.base.text import without_surrogates
from stallscope.reporters.exposition import MetricsPage
from stallscope.store import layout

__all__ = ["Answer", "Pages"]

JSON = "application/json"
TEXT = "text/plain; charset=utf-8"
HTML = "text/html; charset=utf-8"
RETRY_SECONDS = 5
LISTED = 100
MOST_LISTED = 1000
_LAST = re.compile(r"last=([0-9]{1,6})")
_INDEX = """\
/metrics              metrics for Prometheus
/healthz              how the agent is
/livez                whether a restart of the agent would help
/incidents            the last incidents; ?last=N
/incidents/ID         one of them
/incidents/ID/report  its report
/report               the report of the last incident
"""


class Answer(msgspec.Struct):
    """``body`` is closed by who sends it."""

    status: int
    kind: str
    body: bytes | Iterator[bytes]
    headers: tuple[tuple[str, str], ...] = ()


class Pages:
    """Answers requests; used from several threads."""

    def __init__(
        self,
        metrics: MetricsPage,
        health: Callable[[], Sequence[AgentHealth]],
        dest: Path,
        signatures: Sequence[Path] = (),
        commands: Commands | None = None,
    ) -> None:
        self._metrics = metrics
        self._health = health
        self._dest = dest
        self._signatures = [f"--signatures={path}" for path in signatures]
        self._commands = commands or Commands()

    def get(self, path: str, query: str, accept: str) -> Answer:
        """Return the answer to a request; ``accept`` is the header of that name."""
        match path.split("/")[1:]:
            case [""]:
                return Answer(200, TEXT, _INDEX.encode())
            case ["metrics"]:
                text, kind = self._metrics.scraped(accept)
                return Answer(200, kind, text)
            case ["healthz"]:
                return self._healthz()
            case ["livez"]:
                agents = self._health()
                live = bool(agents) and all(one.live for one in agents)
                return Answer(200, TEXT, b"live\n") if live else _refused(503, "not live")
            case ["incidents"]:
                match = _LAST.fullmatch(query or f"last={LISTED}")
                if match is None or not 1 <= int(match[1]) <= MOST_LISTED:
                    return _refused(400, f"?last=N, with N from 1 to {MOST_LISTED}")
                return self._of_store(JSON, lambda: self._list(match[1]))
            case ["incidents", name] if layout.is_id(name):
                return self._of_store(JSON, lambda: self._run("incidents", "--json", name))
            case ["incidents", name, "report"] if layout.is_id(name):
                return self._of_store(HTML, lambda: self._report(name))
            case ["report"]:
                return self._of_store(HTML, self._last_report)
        return _refused(404, "no such page; / lists them")

    def _healthz(self) -> Answer:
        agents = self._health()
        order = ("ok", "degraded", "failed")
        worst = max((one.status for one in agents), key=order.index, default="failed")
        value = {
            "schema": "stallscope.health/1",
            "status": worst,
            "version": package.version(),
            "wrong": [f"{one.state.server}: {why}" for one in agents for why in one.wrong],
            "agents": [msgspec.to_builtins(one) for one in agents],
        }
        body = msgspec.json.encode(without_surrogates(value)) + b"\n"
        return Answer(503 if worst == "failed" else 200, JSON, body)

    def _of_store(self, kind: str, read: Callable[[], Iterator[bytes]]) -> Answer:
        try:
            return Answer(200, kind, read())
        except BusyError as error:
            return _refused(503, str(error), ("Retry-After", str(RETRY_SECONDS)))
        except CommandError as error:
            return _refused(404 if error.is_missing else 500, str(error))

    def _run(self, command: str, *words: str) -> Iterator[bytes]:
        return self._commands.run([command, "--dest", str(self._dest), *words])

    def _list(self, last: str) -> Iterator[bytes]:
        return self._run("incidents", "--json", "--last", last)

    def _report(self, name: str) -> Iterator[bytes]:
        return self._run("report", *self._signatures, "--output", "-", name)

    def _last_report(self) -> Iterator[bytes]:
        found = json.loads(b"".join(self._list("1")))["incidents"]
        if not found:
            raise CommandError("the store has no incident", is_missing=True)
        return self._report(found[-1]["id"])


def _refused(status: int, why: str, *headers: tuple[str, str]) -> Answer:
    return Answer(status, TEXT, f"{why}\n".encode("utf-8", "backslashreplace"), headers)
