# SPDX-License-Identifier: Apache-2.0
"""AppArmor and SELinux: the profiles that confine the server and stallscope."""

from __future__ import annotations

from collections.abc import Iterator

from stallscope.collectors.doctor.checks import Check, Place

__all__ = ["confinement", "profile"]


def profile(place: Place, process: int | str) -> str | None:
    """Return the profile, or context, that confines a process; None where none is known."""
    for path in ("attr/apparmor/current", "attr/current"):
        label = (place.text(f"/proc/{process}/{path}") or "").rstrip("\0")
        if label:
            # SELinux: user:role:type:level.
            free = label == "unconfined" or ":unconfined_t" in label
            return None if free else label
    return None


def confinement(place: Place) -> Iterator[Check]:
    """Report what confines the server and this process.

    A server's profile does not restrict unconfined processes, whatever it says about ptrace.
    """
    if place.server is None:
        return
    by = profile(place, place.server.main.pid)
    if by is None:
        yield Check("server-confinement", "ok", "no profile confines the server")
    else:
        what = f"{by} confines the server; unconfined processes can still read its stacks,"
        what += " and the in-process library needs rules (docs/inproc.md)"
        yield Check("server-confinement", "ok", what)
    own = profile(place, "self")
    if own is not None:
        what = f"{own} confines stallscope itself: the checks below may report less than it allows"
        fix = "allow it ptrace (read) of the server, and capabilities bpf, perfmon, sys_ptrace"
        yield Check("own-confinement", "degraded", what, fix)
