# SPDX-License-Identifier: Apache-2.0
"""What the page cache holds of a server's files, through ``stallscope-probe cache``."""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Sequence

import msgspec

from stallscope.collectors import probe, rootpath
from stallscope.collectors.paths import asking
from stallscope.model import storagecache
from stallscope.model.storagecache import CacheLine, Keep, LogFiles

__all__ = ["MAX_FOLDERS", "Request", "read"]

SECONDS = 60.0
"""The probe's deadline, beside the time that is watched."""
MAX_FOLDERS = 60
"""Of one command line; the probe takes 64."""
_INDEX_BYTES = 4 << 20
_GRACE = 10.0


class Request(msgspec.Struct, frozen=True):
    """What is asked of the probe."""

    pids: tuple[int, ...]
    files: LogFiles = LogFiles()
    """What SQL says of the server."""
    datadir: str | None = None
    """Without SQL: as its command line or its files say."""
    uncache: tuple[str, ...] = ()
    allow_redo: bool = False
    keep: Keep | None = None
    drop: bool = False
    watch_seconds: float = 0.0
    """How long reads are watched, before and after."""
    max_files: int | None = None


def read(request: Request) -> CacheLine:
    """Run the probe. Raises: StallscopeError."""
    seconds = SECONDS + 2 * request.watch_seconds
    data = probe.run(_arguments(request), seconds=seconds + _GRACE)
    return storagecache.loads(data)


def _arguments(request: Request) -> list[str]:
    args = ["cache", "--deadline", str(round(SECONDS * 1000))]
    for pid in request.pids:
        args += ["--pid", str(pid)]
    datadir = request.files.datadir or request.datadir
    if datadir is not None and datadir.startswith("/"):
        args += ["--data-dir", datadir]
    for path in _folders(request)[:MAX_FOLDERS]:
        args += ["--log-dir", path]
    if request.max_files is not None:
        args += ["--max-files", str(request.max_files)]
    if not request.uncache:
        return args
    args += ["--uncache", ",".join(request.uncache)]
    if request.allow_redo:
        args.append("--allow-redo")
    if request.keep is not None:
        args += [f"--keep-{request.keep.unit}", str(request.keep.value)]
    if request.files.dump_threads is not None:
        args += ["--dump-threads", str(request.files.dump_threads)]
    if request.drop:
        args.append("--yes")
        if request.watch_seconds:
            args += ["--after", f"{request.watch_seconds:.3f}"]
    return args


def _folders(request: Request) -> Sequence[str]:
    """Return the folders of logs: as the server's variables say, and of the files that its indexes
    list, which can be elsewhere after a move."""
    found = list(request.files.folders)
    for index in request.files.indexes:
        data = b""
        # The probe says so: it is given the folder of the index, too.
        with contextlib.suppress(asking.SilentDiskError):
            data = rootpath.read(request.pids[0], index, _INDEX_BYTES) or b""
        base = request.files.datadir or posixpath.dirname(index)
        for line in data.split(b"\n"):
            name = line.decode("utf-8", "surrogateescape")
            if name and "\0" not in name:
                path = posixpath.normpath(posixpath.join(base, name))
                found.append(posixpath.dirname(path))
    return list(dict.fromkeys(path for path in found if path.startswith("/")))
