# SPDX-License-Identifier: Apache-2.0
"""AppArmor and SELinux: who is confined, the server or we."""

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
    """Say what confines the server, and us.

    A server's profile does not keep out who is not confined, whatever it says of ptrace.
    """
    if place.server is None:
        return
    by = profile(place, place.server.main.pid)
    if by is None:
        yield Check("server-confinement", "ok", "no profile confines the server")
    else:
        what = f"{by} confines the server: that keeps nobody from reading its stacks who is not"
        what += " confined; the in-process agent needs rules (docs/inproc.md)"
        yield Check("server-confinement", "ok", what)
    own = profile(place, "self")
    if own is not None:
        what = f"{own} confines this program: what it may not do is not what the lines below say"
        mend = "let it ptrace (read) the server, with capabilities bpf, perfmon and sys_ptrace"
        yield Check("own-confinement", "degraded", what, mend)
