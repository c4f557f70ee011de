# SPDX-License-Identifier: Apache-2.0
"""`storage cache`: the probe's line, sums, text and JSON, options, and the agent's part."""

from __future__ import annotations

import argparse
import contextlib
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallscope.agent.health import CollectorHealth
from stallscope.agent.metrics import AgentMetrics
from stallscope.agent.threadwatch import ThreadMetrics
from stallscope.agent.uncaching import Uncaching
from stallscope.analyzers import storagecache as sums
from stallscope.base.errors import StallscopeError
from stallscope.collectors import probe, storagecache
from stallscope.collectors.processes import ProcessInfo, Server
from stallscope.collectors.sql.logfiles import read_log_files
from stallscope.collectors.triggers import triggerfile
from stallscope.collectors.triggers.settings import StorageSettings
from stallscope.main import main, parser
from stallscope.model.storagecache import (
    CLASSES,
    CachedFile,
    CacheError,
    CacheLine,
    Keep,
    LogFiles,
    Reads,
    Uncached,
    loads,
    parse_keep,
)
from stallscope.reporters import storagecache as report

__all__: list[str] = []

CHECKOUT = Path(__file__).resolve().parents[2]
GIB = 1 << 30


def cached(path: str, kind: str = "binlog", **changes: Any) -> CachedFile:
    one = CachedFile(
        path=path,
        kind=kind,
        size=GIB,
        allocated_bytes=GIB,
        cached_bytes=GIB,
        dirty_bytes=0,
        writeback_bytes=0,
        evicted_bytes=4096,
        recently_evicted_bytes=4096,
        readers=0,
        writers=0,
        deleted=False,
        filesystem="ext4",
        memory=False,
        method="cachestat",
    )
    return msgspec.structs.replace(one, **changes)


FILES = (
    cached("/data/binlog.000001", uncache=Uncached("may-go", clean_bytes=GIB)),
    cached(
        "/data/binlog.000002",
        uncache=Uncached("may-go", clean_bytes=GIB // 2, unclean_bytes=65536),
        dirty_bytes=65536,
    ),
    cached("/data/binlog.000003", writers=1, uncache=Uncached("open")),
    cached("/data/ibdata1", "data", cached_bytes=None, dirty_bytes=None, error="Permission denied"),
    cached("/tmp/#sql1", "temporary", memory=True, filesystem="tmpfs", deleted=True),
)


def line(*files: CachedFile, **changes: Any) -> CacheLine:
    made = CacheLine(
        schema="stallscope.probe-cache/1",
        method="cachestat",
        page_bytes=4096,
        elapsed_ms=1.5,
        limit_reached=False,
        late=False,
        special_files=0,
        unreadable=0,
        long_paths=0,
        processes=(),
        folders=(),
        notes=(),
        dropped=False,
        reads=None,
        files=files or FILES,
    )
    return msgspec.structs.replace(made, **changes)


FACTS = report.Facts(
    "mysqld (pid 7)", ram_bytes=24 * GIB, buffer_pool_bytes=8 * GIB, uncache=("binlog",)
)


def text(of: CacheLine, facts: report.Facts = FACTS, width: int = 80, top: int = 15) -> str:
    return "\n".join(one.text for one in report.render(of, facts, width=width, top=top))


def test_a_line_is_read_as_it_was_written() -> None:
    made = line()
    assert loads(msgspec.json.encode(made)) == made


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[]", b"\xff", b'{"schema": 1}', msgspec.json.encode(line(schema="x/1"))]
)
def test_what_is_no_line_is_refused_in_one_line(data: bytes) -> None:
    with pytest.raises(CacheError) as caught:
        loads(data)
    assert "\n" not in str(caught.value)


@given(st.binary(max_size=300))
def test_any_bytes_are_refused_or_read(data: bytes) -> None:
    with contextlib.suppress(CacheError):
        loads(data)


@given(st.binary(max_size=200), st.integers(0, 2000), st.booleans())
def test_a_damaged_line_is_refused_or_shown(junk: bytes, at: int, overwrites: bool) -> None:
    whole = msgspec.json.encode(line())
    at = min(at, len(whole))
    data = whole[:at] + junk + whole[at + (len(junk) if overwrites else 0) :]
    try:
        read = loads(data)
    except CacheError:
        return
    text(read)
    json.loads(report.dumps(read, FACTS))


@given(st.text(max_size=60), st.sampled_from(CLASSES), st.integers(0, 1 << 62))
def test_no_name_controls_the_terminal(name: str, kind: str, size: int) -> None:
    try:
        name.encode()
    except UnicodeEncodeError:
        return
    said = text(line(cached(f"/data/{name}", kind, size=size)))
    assert all(one == "\n" or one.isprintable() for one in said)


def test_sums_leave_out_what_is_not_known() -> None:
    classes = {one.kind: one for one in sums.by_class(FILES)}
    assert list(classes) == ["data", "binlog", "temporary"]
    assert classes["binlog"].cached_bytes == 3 * GIB
    assert classes["data"].cached_bytes is None
    assert classes["data"].unknown_files == 1
    assert classes["temporary"].memory_bytes == GIB
    whole = sums.total(FILES)
    assert (whole.files, whole.cached_bytes, whole.unknown_files) == (5, 4 * GIB, 1)


def test_the_text_says_what_is_there_and_what_is_not() -> None:
    said = text(line())
    assert "5 files of 5 GiB; the page cache holds 4 GiB" in said.replace("\n", " ")
    assert "16.7 % of 24 GiB RAM" in said.replace("\n", " ")
    assert "buffer pool 8 GiB" in said
    assert "  4 GiB+?" in said
    assert "#sql1 (deleted, tmpfs)" in said
    assert "Would free 1.5 GiB of 2 files (binlog). Nothing was done" in said
    assert "1 file, 1 GiB cached: the server has it open" in said
    assert "left: 64 KiB" in said
    assert "1 file could not be counted: Permission denied" in said
    assert max(map(len, said.splitlines())) <= 80


def test_what_was_freed_and_read_is_said() -> None:
    freed = Uncached("may-go", clean_bytes=GIB, freed_bytes=GIB, returned_bytes=4096)
    made = line(
        cached("/data/binlog.000001", uncache=freed, cached_bytes=0),
        dropped=True,
        reads=Reads(5000, 0, None),
    )
    said = text(made, msgspec.structs.replace(FACTS, keep=Keep("bytes", 2 * GIB)))
    assert "Freed 1 GiB of 1 file (binlog, but the newest 2 GiB)." in said
    wanted = "read 0 B from disks in 5 s before and ? in 5 s after"
    assert wanted in said.replace("\n", " ")


def test_an_old_kernel_is_named() -> None:
    said = text(line(cached("/d/t.ibd", "data", dirty_bytes=None), method="mincore"))
    assert "no cachestat(2)" in said


def test_each_reason_has_a_text_and_is_on_the_page() -> None:
    page = (CHECKOUT / "docs/commands/storage-cache.md").read_text()
    source = (CHECKOUT / "pmp/cache/cache_plan.c").read_text()
    names = {word.split('"')[1] for word in source.split("[STALL_CACHE_")[1:] if '"' in word}
    assert {"may-go", "other-class"} < names
    assert names - {"may-go", "other-class"} == set(report.REASONS)
    assert all(f"| `{name}` |" in page for name in report.REASONS)


def test_each_field_of_the_contract_is_there_and_on_the_page() -> None:
    page = (CHECKOUT / "docs/commands/storage-cache.md").read_text()
    document = json.loads(report.dumps(line(), FACTS))
    assert document["schema"] == "stallscope.storage-cache/1"
    for field in (*document, *document["files"][0], *document["total"]):
        assert f"`{field}`" in page, field
    first = document["files"][0]
    wanted = {"path": "/data/binlog.000001", "class": "binlog", "size": GIB, "cached_bytes": GIB}
    assert {key: first[key] for key in wanted} == wanted
    assert document["uncache"]["left_out"] == [{"reason": "open", "files": 1, "cached_bytes": GIB}]
    assert json.loads(report.dumps(line(), report.Facts("x")))["uncache"] is None


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("2", Keep("files", 2)),
        ("0", Keep("files", 0)),
        ("500M", Keep("bytes", 500 << 20)),
        ("1.5 GiB", Keep("bytes", 3 << 29)),
        ("100B", Keep("bytes", 100)),
        ("10m", Keep("seconds", 600)),
        ("10min", Keep("seconds", 600)),
        ("30s", Keep("seconds", 30)),
        ("2h", Keep("seconds", 7200)),
    ],
)
def test_what_is_kept(said: str, kept: Keep) -> None:
    assert parse_keep(said) == kept


@pytest.mark.parametrize("said", ["", "x", "10k", "10g", "-1", "1e9", "10 M B", "9" * 40, "10ms"])
def test_what_keeps_nothing_is_refused(said: str) -> None:
    with pytest.raises(ValueError, match="no number of files"):
        parse_keep(said)


@given(st.text(max_size=30))
def test_any_text_is_kept_or_refused(said: str) -> None:
    with contextlib.suppress(ValueError):
        assert parse_keep(said).value >= 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--yes",), "give --uncache"),
        (("--keep", "2"), "give --uncache"),
        (("--allow-redo",), "give --uncache"),
        (("--uncache", "binlog", "--seconds", "1"), "--yes"),
        (("--uncache", "data"), "no class that can be dropped"),
        (("--uncache", ","), "no class that can be dropped"),
        (("--uncache", "binlog", "--keep", "1k"), "no number of files"),
    ],
)
def test_wrong_options(
    options: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["storage", "cache", "-p", "1", *options]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def arguments(request: storagecache.Request, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    asked: list[str] = []

    def run(args: list[str], *, seconds: float) -> bytes:
        asked.extend(args)
        return msgspec.json.encode(line())

    monkeypatch.setattr(probe, "run", run)
    storagecache.read(request)
    return asked


def test_what_the_probe_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    files = LogFiles("/data", ("/logs", "/data"), (), dump_threads=3)
    request = storagecache.Request((1, 2), files, "/other", ("binlog",), True, Keep("bytes", 5))
    asked = arguments(msgspec.structs.replace(request, drop=True, watch_seconds=2), monkeypatch)
    said = " ".join(asked)
    assert "--pid 1 --pid 2 --data-dir /data --log-dir /logs" in said
    assert "--uncache binlog --allow-redo --keep-bytes 5 --dump-threads 3 --yes --after 2" in said
    few = arguments(storagecache.Request((1,), datadir="relative"), monkeypatch)
    assert not {"--data-dir", "--uncache", "--yes", "--dump-threads"} & set(few)


class Session:
    """Answers what a server would."""

    def __init__(self, rows: dict[str, str], *, table: bool, process: bool = True) -> None:
        self._rows = rows
        self.has_threads_table = table
        self.has_process = process

    def select(self, sql: str) -> list[tuple[object, ...]]:
        if sql.startswith("SHOW GLOBAL VARIABLES"):
            return list(self._rows.items())
        return [(2,)]

    def each(self, sql: str, take: Any) -> None:
        take((1, "u", "h", None, "Binlog Dump GTID", 1, "x", None))
        take((2, "u", "h", None, "Query", 1, "x", "SHOW PROCESSLIST"))


def test_what_the_server_says_of_its_files() -> None:
    rows = {
        "datadir": "/var/lib/mysql/",
        "innodb_log_group_home_dir": "./",
        "innodb_undo_directory": "/undo/",
        "log_bin_basename": "/binlogs/binlog",
        "log_bin_index": "/binlogs/binlog.index",
        "tmpdir": "/tmp:/var/tmp",
        "innodb_buffer_pool_size": "134217728",
        "relay_log_basename": "",
    }
    found = read_log_files(Session(rows, table=True))  # type: ignore[arg-type]
    assert found.datadir == "/var/lib/mysql"
    assert found.folders == ("/var/lib/mysql/.", "/undo", "/binlogs", "/tmp", "/var/tmp")
    assert found.indexes == ("/binlogs/binlog.index",)
    assert (found.dump_threads, found.buffer_pool_bytes) == (2, 134217728)
    listed = read_log_files(Session(rows, table=False))  # type: ignore[arg-type]
    assert listed.dump_threads == 1
    hidden = read_log_files(Session({}, table=False, process=False))  # type: ignore[arg-type]
    assert (hidden.dump_threads, hidden.datadir, hidden.folders) == (None, None, ())


SERVER = Server(ProcessInfo(7, 1, "mysqld", "S", 1, False, "/mysqld", None, ()), (7,))


def test_the_agent_drops_after_an_interval_and_counts_it() -> None:
    asked: list[storagecache.Request] = []

    def read(request: storagecache.Request) -> CacheLine:
        asked.append(request)
        if len(asked) == 2:
            raise StallscopeError("process 7 has ended")
        freed = Uncached("may-go", clean_bytes=GIB, freed_bytes=GIB)
        return line(cached("/data/binlog.000001", uncache=freed), dropped=True)

    settings = StorageSettings(uncache=["binlog"], every_minutes=5, keep="2")
    collector = Uncaching(SERVER, settings, None, read)
    assert collector.interval == collector.rest_interval == 300
    metrics = AgentMetrics({}, 0.0, ThreadMetrics())
    health = CollectorHealth(metrics)
    health.note(collector.collect())
    assert asked == []
    assert metrics.uncached_bytes == 0
    health.note(collector.collect())
    (request,) = asked
    assert request.drop
    assert (request.pids, request.uncache, request.keep) == ((7,), ("binlog",), Keep("files", 2))
    assert (metrics.uncached_bytes, metrics.uncached_files) == (GIB, 1)
    with pytest.raises(StallscopeError):
        collector.collect()
    assert metrics.uncached_bytes == GIB


def test_nothing_is_dropped_by_default() -> None:
    assert triggerfile.defaults().storage == StorageSettings()
    assert StorageSettings().uncache == []


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ('uncache = ["data"]', "uncache"),
        ("every-minutes = 0", "every-minutes"),
        ('keep = "10k"', "storage.keep"),
        ("allow-redo = true", 'it is for "redo"'),
        ("uncached = []", "did you mean 'uncache'?"),
    ],
)
def test_wrong_settings(tmp_path: Path, lines: str, said: str) -> None:
    file = tmp_path / "triggers.toml"
    file.write_text(f"[storage]\n{lines}\n")
    with pytest.raises(triggerfile.TriggerFileError) as caught:
        triggerfile.load(file)
    assert said in str(caught.value)


def test_settings_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "triggers.toml"
    file.write_text('[storage]\nuncache = ["binlog", "redo"]\nallow-redo = true\nkeep = "1G"\n')
    found = triggerfile.load(file).storage
    assert found.uncache == ["binlog", "redo"]
    assert (found.allow_redo, found.every_minutes) == (True, 30)


def test_the_parser_has_the_options() -> None:
    args = parser(["storage"]).parse_args(
        ["storage", "cache", "-p", "1", "--uncache", "binlog, redo", "--keep", "2"]
    )
    assert isinstance(args, argparse.Namespace)
    assert (args.uncache, args.keep) == (("binlog", "redo"), Keep("files", 2))
