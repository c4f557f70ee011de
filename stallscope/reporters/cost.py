# SPDX-License-Identifier: Apache-2.0
"""What watching waits costs the host, in the words of the screens."""

from __future__ import annotations

from stallscope.model.waitlines import Rest
from stallscope.reporters.units import duration

__all__ = ["brief", "sentence"]


def sentence(source: str | None, call_added_ns: float | None, rest: Rest | None = None) -> str:
    """Return what it costs; empty where the source is not known yet."""
    if source is None:
        return ""
    if source == "inproc":
        return "waits are read from the library in the server: this slows down no system call"
    if source != "bpf":
        return "/proc is polled: this uses up to 5 % of a CPU and slows down no system call"
    if rest is not None and rest.resting:
        return "nothing is attached while no wait is long"
    if call_added_ns is None:
        return (
            "the wait programs are attached: they slow down each system call on this host,"
            " by how much was not measured"
        )
    return (
        f"the wait programs are attached: about {_time(call_added_ns)} for each system call on"
        " this host"
    )


def brief(source: str | None, call_added_ns: float | None) -> str:
    """Return the same for a line with little room; empty where system calls are as fast as ever."""
    if source != "bpf":
        return ""
    if call_added_ns is None:
        return "slows system calls"
    return f"+{_time(call_added_ns, '<1 ns')} a system call"


def _time(ns: float, least: str = "less than 1 ns") -> str:
    return duration(round(ns) / 1e6) if ns >= 0.5 else least
