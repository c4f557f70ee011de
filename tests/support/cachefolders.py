# SPDX-License-Identifier: Apache-2.0
"""Data directories for `storage cache`: a process that has files of them open, file systems of
their own, and what fincore(1) says of them."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from stallscope.collectors import probe
from stallscope.model import storagecache
from stallscope.model.storagecache import CachedFile, CacheLine
from tests.support.servers import PATIENCE, wait_until
from tests.support.slowsyncs import dead_disk

__all__ = [
    "MIB",
    "ask",
    "by_name",
    "cached_by_fincore",
    "filled",
    "mounted",
    "part_cached",
    "process_with",
    "wait_until_as_fincore",
]

MIB = 1 << 20
_HOLDER = """\
import os, sys
os.chdir(sys.argv[1])
flags = {"r": os.O_RDONLY, "w": os.O_RDWR}
kept = [os.open(word[2:], flags[word[0]] | os.O_NONBLOCK) for word in sys.argv[2:]]
print("ready", flush=True)
sys.stdin.read()
"""


@contextmanager
def process_with(
    folder: Path, *files: str, prefix: Sequence[str] = ()
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process in a folder that has files open: ``w:NAME`` for writing, ``r:NAME`` for
    reading. It lives as long as this."""
    argv = [*prefix, sys.executable, "-c", _HOLDER, str(folder), *files]
    # Its standard error must be no file: that would be one that it has open.
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"ready\n"
            yield process
            assert process.poll() is None
        finally:
            process.stdin.close()
            process.wait(PATIENCE)


def filled(path: Path, size: int) -> Path:
    """Write a file, and wait until the disk has it: its pages are cached, and clean."""
    with path.open("wb") as file:
        block = os.urandom(min(size, MIB))
        for at in range(0, size, MIB):
            file.write(block[: size - at])
        file.flush()
        os.fsync(file.fileno())
    return path


def part_cached(path: Path, *ranges: tuple[int, int]) -> Path:
    """Leave only these ranges, of bytes, of a clean file in the cache, with what is read ahead."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        for start, end in ranges:
            os.pread(fd, end - start, start)
    finally:
        os.close(fd)
    return path


def ask(pid: int, *options: str, prefix: Sequence[str] = (), code: int | None = 0) -> CacheLine:
    """Run the probe's command."""
    argv = [*prefix, str(probe.find()), "cache", "-p", str(pid), *options]
    done = subprocess.run(argv, capture_output=True, timeout=PATIENCE, check=False)
    assert code is None or done.returncode == code, (done.returncode, done.stderr)
    return storagecache.loads(done.stdout)


def by_name(line: CacheLine) -> dict[str, CachedFile]:
    """Return the files by the last part of their paths."""
    return {one.path.rpartition("/")[2]: one for one in line.files}


def cached_by_fincore(*paths: Path | str) -> dict[str, int]:
    """Return the cached bytes of files as util-linux counts them."""
    found = {}
    for at in range(0, len(paths), 500):
        argv = ["fincore", "--bytes", "--json", "--output", "RES,FILE"]
        argv += map(str, paths[at : at + 500])
        done = subprocess.run(argv, capture_output=True, check=True, timeout=PATIENCE)
        for row in json.loads(done.stdout)["fincore"]:
            found[row["file"]] = int(row["res"])
    return found


def wait_until_as_fincore(counted: Callable[[], Mapping[str, int | None]]) -> None:
    """Wait until it counts what fincore counts: between the two some pages may come or go."""

    def agree() -> bool:
        ours = counted()
        return ours == cached_by_fincore(*ours)

    wait_until(agree, "fincore counts the same pages")


@contextmanager
def mounted(kind: str, folder: Path, megabytes: int = 320) -> Iterator[Path]:
    """Mount a new file system of this kind: on a loop device, in memory, an overlay, or FUSE."""
    if kind == "fuse":
        with dead_disk() as (disk, _, _):
            yield disk
        return
    where = folder / kind
    where.mkdir()
    with contextlib.ExitStack() as at_end:
        if kind == "overlay":
            parts = [folder / f"{kind}-{name}" for name in ("lower", "upper", "work")]
            for part in parts:
                part.mkdir()
            options = "lowerdir={},upperdir={},workdir={}".format(*parts)
            argv = ["mount", "-t", "overlay", "-o", options, "none", str(where)]
        elif kind == "tmpfs":
            argv = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "none", str(where)]
        elif kind == "hugetlbfs":
            argv = ["mount", "-t", "hugetlbfs", "none", str(where)]
        else:
            image = folder / f"{kind}.image"
            with image.open("wb") as file:
                file.truncate(megabytes * MIB)
            # Of a page with several blocks, mincore(2), and so fincore, wants all to be valid.
            blocks = ["-b", "4096"] if kind == "ext4" else []
            subprocess.run([f"mkfs.{kind}", *blocks, str(image)], check=True, capture_output=True)
            argv = ["mount", "-o", "loop", str(image), str(where)]
        subprocess.run(argv, check=True, capture_output=True)
        at_end.callback(subprocess.run, ["umount", str(where)], check=True)
        yield where
