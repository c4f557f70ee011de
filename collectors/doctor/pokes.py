# SPDX-License-Identifier: Apache-2.0
"""Changes of live servers that nobody will undo."""

from __future__ import annotations

from collections.abc import Iterator

from stallscope.collectors.doctor.checks import Check
from stallscope.collectors.poke import poking, records

__all__ = ["pokes"]


def pokes() -> Iterator[Check]:
    """Report pokes of this user that are active, and whether supervisors will undo them; nothing
    where there is none."""
    found, problems = poking.states(records.default_folder())
    for text in problems:
        yield Check("poke", "degraded", text, "move the file away if it is no undo record")
    for state in found:
        record = state.stored.record
        what = f"{record.name} of pid {record.pid}, poke {record.id}"
        fix = f"stallscope poke --undo {record.id}"
        if state.life == "active" and state.supervisors:
            yield Check("poke", "ok", f"{what}: a supervisor undoes it")
        elif state.life == "active" and record.seconds is not None:
            yield Check("poke", "degraded", f"{what}: active, and its supervisors are gone", fix)
        elif state.life == "active":
            yield Check("poke", "degraded", f"{what}: active, without a time to undo it", fix)
        elif state.life == "changed":
            yield Check("poke", "degraded", f"{what}: somebody else changed the value since", None)
        elif state.life == "unknown":
            yield Check("poke", "degraded", f"{what}: not known whether it is active: {state.why}")
