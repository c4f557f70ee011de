# SPDX-License-Identifier: Apache-2.0
"""The schema ``stallscope.analysis/1``, field by field in docs/output-schema.md."""

from __future__ import annotations

from typing import Any

import msgspec

from stallscope.analyzers.analysis import Analysis, Blocker, Ending, Finding, Group, Seen
from stallscope.analyzers.names import display
from stallscope.base.text import without_surrogates
from stallscope.model.capture import Capture, Lock, Release
from stallscope.reporters.counts import (
    count_labels,
    count_states,
    count_threads,
    count_unseen,
    label_counts,
    target_process,
    thread_of,
)
from stallscope.reporters.firstlines import effect_text
from stallscope.reporters.sessions import frequent_statements
from stallscope.reporters.trigger import render as render_trigger

__all__ = ["SCHEMA", "dumps", "render"]

SCHEMA = "stallscope.analysis/1"

_SESSION = ("connection", "user", "database", "host", "command", "activity", "digest")
_STATEMENTS = 10


def dumps(analysis: Analysis, *, elapsed_ns: int | None = None) -> str:
    """Return one line of JSON; see ``render``."""
    # A lone surrogate has no UTF-8: untrusted names may contain one.
    text = msgspec.json.encode(without_surrogates(render(analysis, elapsed_ns=elapsed_ns)))
    return text.decode("utf-8")


def render(analysis: Analysis, *, elapsed_ns: int | None = None) -> dict[str, Any]:
    """Return the analysis in the form of the schema. ``elapsed_ns`` is used where the capture has
    none, as with a dump of another tool.
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
        "trigger": None if capture.trigger is None else render_trigger(capture.trigger),
        "time_ns": capture.time_ns,
        "host": capture.host,
        "threads": {
            "total": count_threads(analysis),
            "idle": states["idle"],
            "running": states["running"],
            "waiting": states["waiting"],
            "incomplete": states["incomplete"],
            "unseen": count_unseen(analysis),
            "stopped": sum(t.count for t in capture.threads if t.stopped_ns > 0),
            "labels": count_labels(analysis),
        },
        "captures": analysis.captures,
        "burst": _burst(capture),
        "cpu": None if analysis.cpu is None else msgspec.to_builtins(analysis.cpu),
        "age": _age(analysis),
        "endings": [_ending(analysis, ending) for ending in analysis.endings],
        "findings": [_finding(analysis, finding) for finding in analysis.findings],
        "releases": [_release(capture, release) for release in capture.releases],
        "cycles": [list(cycle) for cycle in analysis.cycles],
        "waiting_in": [{"count": w.count, "frames": list(w.frames)} for w in analysis.waiting_in],
        "subsystems": [
            {"name": item.subsystem, "threads": item.threads, "share": item.share}
            for item in analysis.subsystems
        ],
        "groups": [_group(analysis, group) for group in analysis.groups],
        "reading": None if capture.reading is None else msgspec.to_builtins(capture.reading),
        "partial": capture.partial,
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


def _age(analysis: Analysis) -> dict[str, Any] | None:
    age = analysis.age
    return None if age is None else {"ms": round(age.ns / 1e6, 3), "at_least": age.at_least}


def _ending(analysis: Analysis, ending: Ending) -> dict[str, Any]:
    return {
        "statement": ending.statement,
        "effect": effect_text(analysis, ending),
        "connection": ending.connection,
        "certain": ending.certain,
        "in_shell": ending.in_shell,
        "asks": ending.asks,
    }


def _finding(analysis: Analysis, finding: Finding) -> dict[str, Any]:
    return {
        "signature": finding.signature,
        "title": finding.title,
        "confidence": round(finding.confidence, 3),
        "impact": {
            "kind": finding.impact.kind,
            "threads": finding.impact.threads,
            "share": finding.impact.share,
            "time_s": finding.impact.time_s,
        },
        "threads": finding.threads,
        "seen": None if finding.seen is None else _seen(finding.seen),
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


def _burst(capture: Capture) -> dict[str, Any] | None:
    burst = capture.burst
    return None if burst is None else msgspec.structs.asdict(burst)


def _seen(seen: Seen) -> dict[str, Any]:
    found = msgspec.structs.asdict(seen)
    found["profile"] = [{"where": where, "share": share} for where, share in seen.profile]
    return found


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
        **{name: None if thread is None else getattr(thread, name) for name in _SESSION},
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


def _release(capture: Capture, release: Release) -> dict[str, Any]:
    lock = capture.lock_at(release.lock)
    return {
        "lock": None if lock is None else f"{lock.address:#x}",
        "symbol": None if lock is None else lock.symbol,
        "tid": release.tid,
        "name": release.name,
        "label": release.label,
        "ago_ms": round(release.ago_ns / 1e6, 3),
        "waited_ms": None if release.waited_ns is None else round(release.waited_ns / 1e6, 3),
        "count": release.count,
        "frames": [display(frame) for frame in release.frames],
    }


def _group(analysis: Analysis, group: Group) -> dict[str, Any]:
    statements = frequent_statements(analysis.capture.threads[i] for i in group.threads)
    return {
        "count": group.count,
        "state": group.state,
        "idle": group.idle,
        "labels": label_counts(analysis.capture.threads[i] for i in group.threads),
        "frames": list(group.frames),
        "statements": [{"count": count, "sql": text} for count, text in statements[:_STATEMENTS]],
    }
