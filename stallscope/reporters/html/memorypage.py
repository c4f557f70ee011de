# SPDX-License-Identifier: Apache-2.0
"""Where memory grows as one HTML file, with the flame graph of the report; widths are bytes."""

from __future__ import annotations

from typing import Any

from stallscope.analyzers import subsystems
from stallscope.base import package
from stallscope.base.text import clean
from stallscope.model.memory import MemoryReport, MemoryStack, MemoryThread
from stallscope.reporters import memory
from stallscope.reporters.html.assets import Assets
from stallscope.reporters.html.pack import MAX_QUERY, Packer, shown
from stallscope.reporters.html.page import embedded, environment, policy
from stallscope.reporters.lines import short_name
from stallscope.reporters.units import size

__all__ = ["render"]

MAX_STACKS = 300
MAX_THREADS = 200
_FRAMES = 24
_COLUMNS = 100
_NO_BREAK = "\N{NO-BREAK SPACE}"


def render(report: MemoryReport, assets: Assets) -> bytes:
    """Return the page."""
    packer = Packer(subsystems.load())
    rows: list[int] = []
    for stack in report.stacks:
        if stack.bytes > 0:
            rows += (packer.stack(stack.frames), stack.bytes)
    value = packer.value()
    value["kind"] = "memory"
    value["main"] = 0
    value["captures"] = [{"rows": rows}]
    headline = memory.headline(report)
    page = (
        environment()
        .get_template("memory.html.j2")
        .render(
            assets=assets,
            counted="Faults" if report.source == "live" else "Allocations",
            data=embedded(value),
            heading=shown(report.server or report.path or "memory", 120),
            headline=shown(headline, MAX_QUERY),
            lines="\n".join(clean(line.text) for line in memory.render(report, width=_COLUMNS)[1:]),
            more=max(0, len(report.stacks) - MAX_STACKS),
            notes=[shown(note, MAX_QUERY) for note in report.notes],
            policy=policy(assets),
            stacks=[_stack(stack) for stack in report.stacks[:MAX_STACKS]],
            threads=[_thread(thread) for thread in report.threads[:MAX_THREADS]],
            title=shown(f"stallscope: {headline}", 120),
            version=package.version(),
            what="added" if report.source == "live" else "allocated",
        )
    )
    return page.encode("utf-8", "backslashreplace")


def _stack(stack: MemoryStack) -> dict[str, Any]:
    return {
        "size": memory.change(stack.bytes).replace(" ", _NO_BREAK),
        "kind": shown(stack.kind),
        "count": stack.faults or stack.allocations,
        "frames": " < ".join(shown(short_name(name)) for name in stack.frames[:_FRAMES]),
    }


def _thread(thread: MemoryThread) -> dict[str, Any]:
    account = "@".join(word for word in (thread.user, thread.host) if word)
    return {
        "size": size(thread.bytes).replace(" ", _NO_BREAK),
        "tid": thread.tid,
        "name": shown(thread.name),
        "connection": "" if thread.connection is None else thread.connection,
        "account": shown(account),
        "query": shown(thread.query, MAX_QUERY),
    }
