# SPDX-License-Identifier: Apache-2.0
"""What the page cache holds of a server's files, for people and as stallscope.storage-cache/1."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from stallscope.analyzers import storagecache
from stallscope.analyzers.storagecache import ClassTotal
from stallscope.base.text import clean, end_of_name
from stallscope.model.storagecache import CachedFile, CacheLine, Keep
from stallscope.reporters import units
from stallscope.reporters.lines import Line, wrap

__all__ = ["REASONS", "SCHEMA", "Facts", "dumps", "render"]

SCHEMA = "stallscope.storage-cache/1"

REASONS = {
    "open": "the server has it open: it is written or read now",
    "newer-than-open": "newer than a file that is open: its reader comes to it next",
    "no-current": "no file of its series is open: which one is in use is not known",
    "no-log": "an index, not a log",
    "unknown-readers": "the server has more dump threads than descriptors that read binary logs:"
    " which file one reads is not known",
    "kept": "by --keep",
    "needs-allow-redo": "redo log: --allow-redo would include it (read the risks first)",
    "current-redo": "written within a minute before the newest file of the redo log",
    "not-innodb": "a redo log that is not InnoDB's",
    "memory": "its file system keeps files in memory: they cannot leave it",
    "dirty-unknown": "which of its pages are dirty is not known here"
    " (Linux before 6.5, or an overlay file system)",
    "replaced": "another file has its name now",
    "failed": "it could not be opened or counted",
}
_PATH = 44
_UNKNOWN = "?"


class Facts(msgspec.Struct, frozen=True):
    """What is known beside the probe's line. None: not known."""

    server: str
    ram_bytes: int | None = None
    page_cache_bytes: int | None = None
    swap_used_bytes: int | None = None
    buffer_pool_bytes: int | None = None
    notes: tuple[str, ...] = ()
    uncache: tuple[str, ...] = ()
    keep: Keep | None = None


def render(line: CacheLine, facts: Facts, *, width: int, top: int) -> list[Line]:
    """Return the lines; ``top``: files at most, 0 for all."""
    whole = storagecache.total(line.files)
    lines = [*wrap(_headline(whole, facts), width, style="bold")]
    lines += wrap(_memory(line, facts), width)
    lines += [Line(""), *_classes(line, whole)]
    lines += [Line(""), *_files(line.files, width, top)]
    if line.reads is not None or facts.uncache:
        lines += [Line(""), *_uncache(line, facts, width, top)]
    notes = list(_notes(line, facts))
    if notes:
        lines.append(Line(""))
    for note in notes:
        lines += wrap(note, width, hang="  ", style="yellow")
    return lines


def _headline(whole: ClassTotal, facts: Facts) -> str:
    held = "an unknown part" if whole.cached_bytes is None else units.size(whole.cached_bytes)
    share = ""
    if whole.cached_bytes is not None and facts.ram_bytes:
        percent = 100 * whole.cached_bytes / facts.ram_bytes
        share = f", {percent:.1f} % of {units.size(facts.ram_bytes)} RAM"
    return (
        f"{facts.server}: {units.number(whole.files)} files of {units.size(whole.size)}; the page"
        f" cache holds {held} of them{share}."
    )


def _memory(line: CacheLine, facts: Facts) -> str:
    def of_all(name: str) -> str:
        numbers = [getattr(process, name) for process in line.processes]
        known = [number for number in numbers if number is not None]
        return units.size(sum(known)) if known and len(known) == len(numbers) else _UNKNOWN

    parts = [f"Server: resident {of_all('rss_bytes')}", f"in swap {of_all('swap_bytes')}"]
    if facts.buffer_pool_bytes is not None:
        parts.append(f"buffer pool {units.size(facts.buffer_pool_bytes)}")
    if facts.page_cache_bytes is not None:
        parts.append(f"page cache of the host {units.size(facts.page_cache_bytes)}")
    return ", ".join(parts) + "."


def _size(count: int | None) -> str:
    return _UNKNOWN if count is None else units.size(count)


def _sum(of: ClassTotal, count: int | None) -> str:
    """Return a sum, marked where some of its files are not known."""
    return f"{_size(count)}+{_UNKNOWN}" if count is not None and of.unknown_files else _size(count)


def _classes(line: CacheLine, whole: ClassTotal) -> Iterator[Line]:
    yield Line(
        f"{'class':<12}{'files':>7}{'size':>11}{'cached':>11}{'dirty':>11}{'evicted lately':>17}"
    )
    for one in (*storagecache.by_class(line.files), whole):
        style = "bold" if one is whole else ""
        yield Line(
            f"{one.kind:<12}{units.number(one.files):>7}{units.size(one.size):>11}"
            f"{_sum(one, one.cached_bytes):>11}{_size(one.dirty_bytes):>11}"
            f"{_size(one.recently_evicted_bytes):>17}",
            style,
        )


def _path(path: str, room: int) -> str:
    return end_of_name(clean(path), max(_PATH // 2, room))


def _files(files: Sequence[CachedFile], width: int, top: int) -> Iterator[Line]:
    held = sorted((one for one in files if one.cached_bytes), key=lambda one: -_cached(one))
    unknown = [one for one in files if one.cached_bytes is None]
    shown = held if not top else held[:top]
    yield Line(f"{'cached':>10}{'of':>6}{'dirty':>11}  {'class':<12}file", "bold")
    for one in shown:
        percent = f"{min(100.0, 100 * _cached(one) / one.size):.0f} %" if one.size else "-"
        yield Line(
            f"{units.size(_cached(one)):>10}{percent:>6}{_size(one.dirty_bytes):>11}"
            f"  {one.kind:<12}{_path(_name(one), width - 41)}"
        )
    for one in unknown[: top or None]:
        text = f"{_UNKNOWN:>10}{'':>6}{_UNKNOWN:>11}  {one.kind:<12}"
        yield Line(f"{text}{_path(_name(one), width - 41)}")
    rest = len(held) - len(shown)
    if rest > 0:
        left = sum(_cached(one) for one in held[len(shown) :])
        yield Line(f"{units.size(left):>10}      in {rest} more: --top 0 shows all", "dim")


def _cached(one: CachedFile) -> int:
    return one.cached_bytes or 0


def _name(one: CachedFile) -> str:
    marks = [word for word, is_so in (("deleted", one.deleted),) if is_so]
    if one.memory:
        marks.append(one.filesystem)
    return f"{one.path} ({', '.join(marks)})" if marks else one.path


def _uncache(line: CacheLine, facts: Facts, width: int, top: int) -> Iterator[Line]:
    files = storagecache.uncached(line.files)
    freed = sum(one.uncache.freed_bytes or 0 for one in files if one.uncache)
    clean_bytes = sum(one.uncache.clean_bytes for one in files if one.uncache)
    what = f"{_files_text(len(files))} ({', '.join(facts.uncache)}{_kept(facts.keep)})"
    if line.dropped:
        yield from wrap(f"Freed {units.size(freed)} of {what}.", width, style="bold")
    else:
        text = f"Would free {units.size(clean_bytes)} of {what}. Nothing was done: --yes does it."
        yield from wrap(text, width, style="bold")
    for one in files[: top or None]:
        assert one.uncache is not None
        number = one.uncache.freed_bytes if line.dropped else one.uncache.clean_bytes
        yield Line(f"{_size(number):>10}  {one.kind:<8}{_path(one.path, width - 20)}")
    unclean = sum(one.uncache.unclean_bytes for one in line.files if one.uncache)
    if unclean:
        text = f"Beside dirty pages, or being written, and so left: {units.size(unclean)}."
        yield from wrap(text, width)
    left = storagecache.left_out(line.files)
    if left:
        yield Line("Left out:")
    for row in left:
        why = REASONS.get(row.reason, row.reason)
        text = f"{_files_text(row.files)}, {units.size(row.cached_bytes)} cached: {why}"
        yield from wrap(text, width, indent="  ", hang="    ")
    yield from _reads(line, width)


def _files_text(count: int) -> str:
    return "1 file" if count == 1 else f"{units.number(count)} files"


def _kept(keep: Keep | None) -> str:
    if keep is None:
        return ""
    if keep.unit == "bytes":
        return f", but the newest {units.size(keep.value)}"
    if keep.unit == "seconds":
        return f", but those of the last {units.duration(keep.value * 1000)}"
    return f", but the newest {keep.value}"


def _reads(line: CacheLine, width: int) -> Iterator[Line]:
    reads = line.reads
    if reads is None:
        return
    length = units.duration(reads.elapsed_ms)
    back = [
        one.uncache.returned_bytes
        for one in line.files
        if one.uncache is not None and one.uncache.returned_bytes is not None
    ]
    text = (
        f"The server read {_size(reads.before_bytes)} from disks in {length} before and"
        f" {_size(reads.after_bytes)} in {length} after; of the files that were dropped,"
        f" {units.size(sum(back))} were cached again then."
    )
    yield from wrap(text, width)


def _notes(line: CacheLine, facts: Facts) -> Iterator[str]:
    yield from facts.notes
    yield from line.notes
    if line.limit_reached:
        yield "The limit of files was reached: more are not counted; raise --max-files."
    if line.late:
        yield "The time was over before all files were counted."
    if line.long_paths:
        yield f"{line.long_paths} files have a path that is too long to open."
    if line.method == "mincore":
        yield (
            "This kernel has no cachestat(2) (Linux 6.5): dirty and evicted pages are not known,"
            " and nothing can be dropped safely."
        )
    errors: dict[str, int] = {}
    for one in line.files:
        if one.error is not None and not one.memory:
            errors[one.error] = errors.get(one.error, 0) + 1
    for error, count in sorted(errors.items()):
        yield f"{_files_text(count)} could not be counted: {error}{_advice(error)}"
    if any(one.filesystem == "zfs" for one in line.files):
        yield "ZFS keeps most of its cache (the ARC) outside of the page cache: it is not counted."


def _advice(error: str) -> str:
    if error in ("Operation not permitted", "Permission denied"):
        return (
            ": the kernel shows it only to the owner of a file: run it as root, or give the probe"
            " cap_fowner,cap_dac_read_search"
        )
    return ""


def dumps(line: CacheLine, facts: Facts) -> str:
    """Return stallscope.storage-cache/1, one line."""
    uncache: dict[str, Any] | None = None
    if facts.uncache:
        files = storagecache.uncached(line.files)
        uncache = {
            "classes": facts.uncache,
            "keep": facts.keep,
            "dropped": line.dropped,
            "clean_bytes": sum(one.uncache.clean_bytes for one in files if one.uncache),
            "freed_bytes": sum(one.uncache.freed_bytes or 0 for one in files if one.uncache)
            if line.dropped
            else None,
            "left_out": storagecache.left_out(line.files),
            "reads": line.reads,
        }
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "server": facts.server,
        "method": line.method,
        "page_bytes": line.page_bytes,
        "elapsed_ms": line.elapsed_ms,
        "ram_bytes": facts.ram_bytes,
        "page_cache_bytes": facts.page_cache_bytes,
        "swap_used_bytes": facts.swap_used_bytes,
        "buffer_pool_bytes": facts.buffer_pool_bytes,
        "processes": line.processes,
        "classes": storagecache.by_class(line.files),
        "total": storagecache.total(line.files),
        "files": line.files,
        "folders": line.folders,
        "limit_reached": line.limit_reached,
        "special_files": line.special_files,
        "unreadable": line.unreadable,
        "uncache": uncache,
        "notes": list(_notes(line, facts)),
    }
    return msgspec.json.encode(document).decode()
