# SPDX-License-Identifier: Apache-2.0
"""The schema ``stallscope.analysis/1``, field by field in docs/output-schema.md."""

from __future__ import annotations

from typing import Any

import msgspec

from stallscope.analyzers.analysis import Analysis, Blocker, Finding, Group
from stallscope.model import Lock
from stallscope.reporters.counts import (
    count_labels,
    count_states,
    count_threads,
    label_counts,
    target_process,
    thread_of,
)

__all__ = ["SCHEMA", "dumps", "render"]

SCHEMA = "stallscope.analysis/1"


def dumps(analysis: Analysis, *, elapsed_ns: int | None = None) -> str:
    """Return one line of JSON; see ``render``."""
    # A lone surrogate has no UTF-8: names from elsewhere may hold one.
    text = msgspec.json.encode(_without_surrogates(render(analysis, elapsed_ns=elapsed_ns)))
    return text.decode("utf-8")


def render(analysis: Analysis, *, elapsed_ns: int | None = None) -> dict[str, Any]:
    """Return the analysis as the schema has it.

    ``elapsed_ns`` stands in where the capture does not say: a dump of another tool.
    """
    capture = analysis.capture
    elapsed = capture.elapsed_ns if capture.elapsed_ns is not None else elapsed_ns
    states = count_states(analysis)
    return {
        "schema": SCHEMA,
        "inputs": list(analysis.inputs),
        "target": _target(analysis),
        "capture": capture.path,
        "stopped_ns": capture.stopped_ns,
        "elapsed_ms": None if elapsed is None else round(elapsed / 1e6, 3),
        "backend": capture.backend,
        "backend_reason": capture.backend_reason,
        "snapshot_ms": None if capture.snapshot_ns is None else round(capture.snapshot_ns / 1e6, 3),
        "time_ns": capture.time_ns,
        "host": capture.host,
        "threads": {
            "total": count_threads(analysis),
            "idle": states["idle"],
            "running": states["running"],
            "waiting": states["waiting"],
            "stopped": sum(t.count for t in capture.threads if t.stopped_ns > 0),
            "labels": count_labels(analysis),
        },
        "findings": [_finding(analysis, finding) for finding in analysis.findings],
        "cycles": [list(cycle) for cycle in analysis.cycles],
        "groups": [_group(analysis, group) for group in analysis.groups],
        "partial": bool(capture.notes),
        "notes": [{"code": note.code, "message": note.message} for note in capture.notes],
    }


def _target(analysis: Analysis) -> dict[str, Any] | None:
    index = target_process(analysis)
    processes = analysis.capture.processes
    process = None if index is None else processes[index]
    known = process is not None and (process.pid or process.exe or process.comm)
    if not known and analysis.server is None:
        return None
    return {
        "pid": process.pid or None if process is not None else None,
        "exe": process.exe if process is not None else None,
        "comm": process.comm if process is not None else None,
        "server": analysis.server,
        "version": analysis.version,
        "processes": len(processes),
    }


def _finding(analysis: Analysis, finding: Finding) -> dict[str, Any]:
    return {
        "signature": finding.signature,
        "title": finding.title,
        "confidence": round(finding.confidence, 3),
        "threads": finding.threads,
        "blocker": None if finding.blocker is None else _blocker(analysis, finding.blocker),
        "waiters": [
            {"count": waiter.count, "frames": list(waiter.frames)} for waiter in finding.waiters
        ],
        "locks": [_lock(lock) for lock in finding.locks],
        "chain": [
            {"signature": link.signature, "threads": link.threads, "tid": link.tid}
            for link in finding.chain
        ],
        "evidence": list(finding.evidence),
        "against": list(finding.against),
        "remedies": list(finding.remedies),
        "references": list(finding.references),
    }


def _blocker(analysis: Analysis, blocker: Blocker) -> dict[str, Any]:
    thread = thread_of(analysis, blocker.tid)
    call = None if thread is None else thread.syscall
    return {
        "tid": blocker.tid,
        "name": blocker.name,
        "frames": list(blocker.frames),
        "sql": blocker.sql,
        "state": blocker.state,
        "source": blocker.source,
        "certain": blocker.certain,
        "label": None if thread is None else thread.label,
        "unwind": None if thread is None else thread.unwind,
        "syscall": None if call is None else call.name or str(call.nr),
        "kernel_frames": [] if thread is None else [str(frame) for frame in thread.kernel_frames],
    }


def _lock(lock: Lock) -> dict[str, Any]:
    return {
        "address": f"{lock.address:#x}",
        "symbol": lock.symbol,
        "kind": str(lock.kind),
        "owner_tid": lock.owner_tid,
        "owner_raw": lock.owner_raw,
        "waiters": lock.waiters,
        "source": lock.source,
        "stable": lock.stable,
        "readers": lock.readers,
    }


def _group(analysis: Analysis, group: Group) -> dict[str, Any]:
    return {
        "count": group.count,
        "state": group.state,
        "idle": group.idle,
        "labels": label_counts(analysis.capture.threads[i] for i in group.threads),
        "frames": list(group.frames),
    }


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, dict):
        return {_without_surrogates(k): _without_surrogates(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_without_surrogates(item) for item in value]
    return value
