# SPDX-License-Identifier: Apache-2.0
"""Where a store is, and what the files in it are called: docs/store.md."""

from __future__ import annotations

import datetime
import os
import pwd
import re
from pathlib import Path

from stallscope.base import trust
from stallscope.base.errors import UsageError
from stallscope.base.times import rfc3339

__all__ = [
    "ASIDE",
    "CAPTURES",
    "CLOCK",
    "DEADLOCKS",
    "GONE",
    "HISTORY",
    "HISTORY_FILES",
    "INCIDENT",
    "INCIDENTS",
    "INDEX",
    "MARK",
    "MARK_TEXT",
    "RAW_SQL",
    "SAMPLES",
    "SERVERS",
    "SPOOL",
    "SYSTEM_DEST",
    "TEXTS",
    "WAITS",
    "capture_name",
    "default_dest",
    "id_time_ns",
    "incident_id",
    "is_capture_name",
    "is_deadlock_name",
    "is_history_name",
    "is_id",
    "is_leftover",
    "is_own_temporary",
    "is_server_key",
    "is_sessions_name",
    "is_temporary",
    "is_text_name",
    "pt_stalk_files",
    "reading_dest",
]

SYSTEM_DEST = Path("/var/lib/stallscope")

INCIDENTS = "incidents"
DEADLOCKS = "deadlocks"
HISTORY = "history"
"""What threads did lately, a folder for each agent (owners.py)."""
HISTORY_FILES = ("0.jsonl", "1.jsonl")
SPOOL = "spool"
"""Captures that belong to no incident yet, a folder for each agent (owners.py)."""
SERVERS = "servers"
"""What belongs to one server, a folder for each, named by its key."""
INDEX = "index.json"
CLOCK = "clock.json"
"""The time of the store, which no wall clock changes."""
MARK = "lock"
MARK_TEXT = b"stallscope.store/1\n"
"""The content of the lock file: in a folder without it nothing is written."""

INCIDENT = "incident.json"
CAPTURES = "captures"
SAMPLES = "samples.jsonl.zst"
WAITS = "waits.jsonl.zst"
TEXTS = "texts"
RAW_SQL = "raw-sql.jsonl"

ASIDE = ".new-"
"""An incident that is not announced yet."""
GONE = ".gone-"
"""An incident whose removal has begun."""

_ID = re.compile(r"\d{8}T\d{6}\.\d{3}Z-[A-Za-z0-9_+.-]{1,64}")
_CAPTURE = re.compile(r"\d{4,6}\.jsonl\.zst")
_SESSIONS = re.compile(r"\d{4,6}\.sessions\.json")
_HISTORY = re.compile(r"[1-9][0-9]{0,9}(?:(?:-[0-9a-f]{8}){2}(?:-[0-9]{1,2})?)?")
_TEXT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\.txt")
_DEADLOCK = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,119}\.json")
# Of stallscope/base/atomicfile.py and of pmp/base/output.c.
_TEMPORARY = re.compile(r"\..{1,200}\.[0-9a-f]{12}\.tmp|\.stallscope-[0-9a-f]{16}\.tmp")
_PT_STALK = re.compile(r"\d{4}(?:_\d\d){5}-[a-z_-]+\d*")
_SERVER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._]{0,99}-[0-9a-f]{8}")
_NAME = re.compile(r"[^A-Za-z0-9_+.]+")

_LEFTOVER = re.compile(
    rf"{re.escape(ASIDE)}[0-9a-f]{{16}}|{re.escape(GONE)}{_ID.pattern}",
)


def default_dest() -> Path:
    """Return the store that is written where the user names none."""
    if _writable(SYSTEM_DEST):
        return SYSTEM_DEST
    return _own_dest()


def reading_dest() -> Path:
    """Return the store that is read where the user names none: the system's if there is no own."""
    dest = default_dest()
    if not (dest / INCIDENTS).is_dir() and os.access(SYSTEM_DEST / INCIDENTS, os.R_OK | os.X_OK):
        return SYSTEM_DEST
    return dest


def _own_dest() -> Path:
    own = trust.own_folder("XDG_STATE_HOME", ".local/state", "stallscope")
    if own is not None:
        return own
    try:
        return Path(pwd.getpwuid(os.geteuid()).pw_dir, ".local/state/stallscope")
    except KeyError:
        raise UsageError("this user has no home for a store: give --dest, or set HOME") from None


def _writable(folder: Path) -> bool:
    """Return whether files can be made in a folder, which may itself have to be made."""
    if not folder.exists():
        folder = folder.parent
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)


def incident_id(time_ns: int, name: str, pid: int) -> str:
    """Return the id of an incident that begins now; `Store.begin` makes it unique."""
    moment = rfc3339(time_ns).replace("-", "").replace(":", "")  # 20261121T145012.345678Z
    plain = _NAME.sub("_", name)[:32] or "server"
    return f"{moment[:19]}Z-{plain}-{pid}"


def is_id(name: str) -> bool:
    """Return whether a folder of this name can be an incident."""
    return _ID.fullmatch(name) is not None


def id_time_ns(name: str) -> int | None:
    """Return the moment in an id, to the second; None where there is none."""
    if not is_id(name):
        return None
    try:
        moment = datetime.datetime.strptime(name[:15] + "+0000", "%Y%m%dT%H%M%S%z")
    except ValueError:
        return None
    return max(0, int(moment.timestamp())) * 10**9


def capture_name(number: int) -> str:
    """Return the name, relative to its incident, of a capture; the first is 1."""
    return f"{CAPTURES}/{number:04d}.jsonl.zst"


def is_leftover(name: str) -> bool:
    """Return whether this is an incident that is being made or removed."""
    return _LEFTOVER.fullmatch(name) is not None


def is_capture_name(name: str) -> bool:
    """Return whether a file in ``captures`` is a capture."""
    return _CAPTURE.fullmatch(name) is not None


def is_sessions_name(name: str) -> bool:
    """Return whether a file in ``captures`` holds the sessions of a capture."""
    return _SESSIONS.fullmatch(name) is not None


def is_text_name(name: str) -> bool:
    """Return whether a file in ``texts`` is one of ours."""
    return _TEXT.fullmatch(name) is not None


def is_deadlock_name(name: str) -> bool:
    """Return whether a file in ``deadlocks`` is one of ours."""
    return _DEADLOCK.fullmatch(name) is not None


def is_history_name(name: str) -> bool:
    """Return whether a folder in ``history`` is one of an agent."""
    return _HISTORY.fullmatch(name) is not None


def is_server_key(name: str) -> bool:
    """Return whether a folder in ``servers`` is one of ours."""
    return _SERVER.fullmatch(name) is not None


def is_temporary(name: str) -> bool:
    """Return whether this is a file that was being written when its writer was killed."""
    return _TEMPORARY.fullmatch(name) is not None


def is_own_temporary(name: str) -> bool:
    """Return whether this is such a file of the store's own, which may lie among those of
    others."""
    return is_temporary(name) and name.startswith((f".{INDEX}.", f".{MARK}.", f".{CLOCK}."))


def pt_stalk_files(folder: Path) -> bool:
    """Return whether files of pt-stalk lie in a folder, among the first thousands of names."""
    try:
        with os.scandir(folder) as entries:
            for _, entry in zip(range(20_000), entries, strict=False):
                if _PT_STALK.fullmatch(entry.name):
                    return True
    except OSError:
        pass
    return False
