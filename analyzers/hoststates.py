# SPDX-License-Identifier: Apache-2.0
"""Stalls that the host makes, and no stack shows: a quota of CPU that is used up, a full disk,
memory that is swapped or reclaimed. Their numbers are sampled with the capture, over its burst.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import msgspec

from stallscope.base.text import one_line

__all__ = ["Said", "shown"]

THROTTLED = 0.6
"""The share of the time from which on a throttled server has a fraction of its CPUs."""
STOLEN = 0.2
FAULTS = 100.0
"""Pages a second that the server's threads waited for, each a read of a disk."""
RECLAIMS = 100.0
"""Times a second that a thread of the host had to free memory itself before it got some."""

Values = Mapping[str, float]
Names = Mapping[str, str]


class Said(msgspec.Struct, frozen=True):
    """What numbers show."""

    headline: str
    says: tuple[str, ...] = ()
    clients: bool = True
    """No client gets in, or none can write."""
    remedies: tuple[str, ...] = ()
    """In place of those of the signature."""
    root: bool = False
    """It is the cause of what the stacks show, whatever that is."""


def shown(values: Values, names: Names) -> Iterator[tuple[str, Said]]:
    """Yield the states that the numbers show, the worst first, by signature."""
    safe = {key: one_line(text, 120) for key, text in names.items()}
    for name, read in _STATES:
        said = read(values, safe)
        if said is not None:
            yield name, said


def _quota(values: Values, names: Names) -> Said | None:
    share = values.get("cgroup.cpu.throttled_share")
    if share is None or share < THROTTLED:
        return None
    group = names.get("cgroup.cpu")
    limit = values.get("cgroup.cpu.limit")
    quota = "its quota of CPU" if limit is None else f"its quota of {limit:.3g} CPUs"
    of = f"the quota is that of cgroup {group}" if group else "the quota is that of its cgroup"
    return Said(
        f"{quota} is used up {share:.0%} of the time",
        (f"{of}: its threads stand still until the next period begins",),
    )


def _steal(values: Values, names: Names) -> Said | None:
    share = values.get("host.cpu.steal")
    if share is None or share < STOLEN:
        return None
    return Said(f"the hypervisor withholds {share:.0%} of the CPU time of this host")


def _disk(values: Values, names: Names) -> Said | None:
    full = [role for role in _ROLES if _how_full(values, role)]
    if not full:
        return None
    role = full[0]
    where = names.get(f"space.{role}", "its file system")
    says = [f"also full: {names.get(f'space.{other}', _ROLES[other])}" for other in full[1:]]
    others = [name for name in names.get(f"space.{role}.with", "").split() if name in _ROLES]
    if others:
        says.append(f"{where} also has {' and '.join(_ROLES[other] for other in others)}")
    more = [name for name in (*others, *full[1:]) if name in _DELETED]
    freed = [text for name in (role, *more) for text in _FREED.get(name, ())]
    return Said(
        f"the disk under {_ROLES[role]} is full: {_how_full(values, role)} on {where}",
        tuple(says),
        clients=role in _WRITTEN,
        remedies=tuple(text.format(where) for text in dict.fromkeys(freed)),
        root=role in _WRITTEN,
    )


def _how_full(values: Values, role: str) -> str:
    """Return what is left, empty where there is room or that is not known."""
    if not values.get(f"space.{role}.full"):
        return ""
    if values.get(f"space.{role}.free_inodes") == 0.0:
        return "no inode is free"
    return f"{values.get(f'space.{role}.free_bytes', 0.0) / 1024:.0f} kB are free"


_ROLES = {
    "redo": "the redo log",
    "binlog": "the binary log",
    "data": "the data directory",
    "undo": "undo tablespaces",
    "doublewrite": "the doublewrite buffer",
    "relay": "the relay logs",
    "temporary": "temporary files",
}
"""What is kept there, first what stops all writes."""
_WRITTEN = frozenset(("redo", "binlog", "data", "undo", "doublewrite"))
"""Without room for these no transaction ends."""
_DELETED = frozenset(("binlog", "temporary"))
"""Files of these can go, and make room for others on their disk."""
_FREED = {
    "redo": ("Enlarge {}, or move other files away from it: redo files cannot be removed.",),
    "binlog": (
        "Make a little room on {}: enlarge it, or move the oldest binary log away. PURGE itself"
        " writes a file there.",
        "Then PURGE BINARY LOGS BEFORE NOW() - INTERVAL 1 HOUR, where each replica has read them."
        " Commits go on within 60 s; KILL makes no room.",
    ),
    "data": (
        "Enlarge {}, or move away what is not the server's: dumps, old logs, deleted files that"
        " are open (lsof +L1).",
        "Statements that wait go on within 60 s; no statement has to be killed.",
    ),
    "relay": (
        "Enlarge {}, or set relay_log_space_limit, and wait until the applier has caught up.",
    ),
    "temporary": (
        "End the statement that sorts or alters most, often the oldest one, or enlarge {}.",
    ),
}


def _read_only(values: Values, names: Names) -> Said | None:
    roles = [
        name.split(".")[1]
        for name, value in sorted(values.items())
        if name.startswith("space.")
        and name.count(".") == 2
        and name.endswith(".read_only")
        and value
    ]
    if not roles:
        return None
    role = roles[0]
    where = names.get(f"space.{role}", "its file system")
    text = f"{where}, the disk under {_ROLES.get(role, role)}, is mounted read-only"
    return Said(text, root=role in _WRITTEN)


def _swapping(values: Values, names: Names) -> Said | None:
    faults, read = values.get("rate(process.major_faults)"), values.get("rate(memory.swapped_in)")
    if faults is None or read is None or min(faults, read) < FAULTS:
        return None
    swapped = values.get("process.swap_bytes")
    says = () if not swapped else (f"{swapped / (1 << 20):.0f} MiB of the server are in swap",)
    return Said(f"the server waits for its memory from swap: {faults:.0f} times a second", says)


def _memory_limit(values: Values, names: Names) -> Said | None:
    met, faults = (
        values.get("rate(cgroup.memory.limited)"),
        values.get("rate(process.major_faults)"),
    )
    if met is None or faults is None or met < RECLAIMS or faults < FAULTS:
        return None
    limit = values.get("cgroup.memory.limit_bytes")
    size = "" if limit is None else f" of {limit / (1 << 20):.0f} MiB"
    group = names.get("cgroup.memory")
    of = f" of cgroup {group}" if group else ""
    return Said(
        f"the server is at its memory limit{size}, and reads {faults:.0f} pages a second again",
        (f"the limit{of} was met {met:.0f} times a second",),
    )


def _reclaim(values: Values, names: Names) -> Said | None:
    count = values.get("rate(memory.direct_reclaims)")
    if count is None or count < RECLAIMS:
        return None
    return Said(f"the host is short of memory: threads had to free some {count:.0f} times a second")


def _compaction(values: Values, names: Names) -> Said | None:
    count = values.get("rate(memory.compaction_stalls)")
    if count is None or count < RECLAIMS:
        return None
    return Said(f"threads move memory to make huge pages: {count:.0f} times a second")


def _oom(values: Values, names: Names) -> Said | None:
    if not values.get("rate(cgroup.memory.oom_kills)"):
        return None
    group = names.get("cgroup.memory")
    of = f"of cgroup {group}" if group else "of the server's cgroup, or of this host"
    return Said(f"the OOM killer has just ended a process {of}")


_STATES: tuple[tuple[str, Callable[[Values, Names], Said | None]], ...] = (
    ("disk-full", _disk),
    ("disk-read-only", _read_only),
    ("cpu-quota", _quota),
    ("memory-limit", _memory_limit),
    ("process-swapped", _swapping),
    ("memory-reclaim", _reclaim),
    ("memory-compaction", _compaction),
    ("cpu-steal", _steal),
    ("oom-kill", _oom),
)
