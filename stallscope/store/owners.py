# SPDX-License-Identifier: Apache-2.0
"""Whose something in a store is, and whether its owner still runs.

The kernel's locks say so for all processes of a host, in whatever container and pid namespace. On
a file system that several hosts share, the locks of another host may not count here; so what
belongs to another host is taken for alive as long as that is possible. Pids are never asked.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from stallscope.base import host, mounts
from stallscope.base.errors import StallscopeError
from stallscope.model.incident import Origin, Outline
from stallscope.store import files, locking
from stallscope.store.storeclock import StoreClock

__all__ = ["is_abandoned", "is_ongoing", "is_owner", "origin", "take_folder"]

LONGEST_INCIDENT_NS = 3600 * 10**9
"""An incident ends after 15 minutes, and its recovery soon after that."""
MAX_SAME_NAME = 100
_OWNED = re.compile(r"[1-9][0-9]{0,9}-([0-9a-f]{8})-([0-9a-f]{8})(?:-[0-9]{1,2})?")


def origin(at_ns: int) -> Origin:
    """Return this process's host and boot, with a moment by the time of the store."""
    return Origin(host.host_id(), _boot(), at_ns)


def take_folder(above: Path) -> tuple[Path, locking.Held | None]:
    """Make a folder of this process, and lock it; None where the file system has no locks.

    Its name has the pid, which others can have too, in another pid namespace or on another host.
    Raises: StallscopeError. OSError.
    """
    name = f"{os.getpid()}-{host.host_id()}-{_boot()}"
    for number in range(1, MAX_SAME_NAME):
        path = above / (name if number == 1 else f"{name}-{number}")
        is_new = files.make_folder(path)
        try:
            held = locking.take(path)
        except locking.Locked:
            continue
        except FileNotFoundError:
            continue  # taken for abandoned between the two calls
        except OSError:
            if is_new:
                return path, None
            continue
        if path.exists():
            return path, held
        held.release()
    raise StallscopeError(f"cannot make {above / name}: it is taken")


def is_owner(name: str) -> bool:
    """Return whether a folder can be one that ``take_folder`` made."""
    return _OWNED.fullmatch(name) is not None


def is_abandoned(above: Path, name: str, inside: int) -> bool:
    """Return whether the owner of a folder that ``take_folder`` made has ended.

    ``inside``: the open folder ``above``. What is not known is not abandoned.
    """
    found = _OWNED.fullmatch(name)
    held = locking.is_held(name, inside)
    if held or found is None:
        return False
    if found.group(2) == _boot():
        return held is False
    # The owner ran before this host was started, or runs on another one.
    return found.group(1) == host.host_id() or (held is False and not mounts.is_shared(above))


def is_ongoing(dest: Path, above: int, incident: Outline) -> bool:
    """Return whether an agent writes an incident without an end now. ``above``: the open folder of
    all incidents of the store ``dest``.
    """
    held = locking.is_held(incident.id, above)
    if held or (held is False and not _may_be_elsewhere(dest, incident.origin)):
        return held
    # Locks say nothing: an agent ends an incident after some time.
    return StoreClock(dest).now().store_ns - incident.order[0] < LONGEST_INCIDENT_NS


def _may_be_elsewhere(dest: Path, of: Origin | None) -> bool:
    return (
        of is not None
        and of.boot != _boot()
        and of.host != host.host_id()
        and mounts.is_shared(dest)
    )


def _boot() -> str:
    return host.digest("boot", host.boot_id())
