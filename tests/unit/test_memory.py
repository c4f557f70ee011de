# SPDX-License-Identifier: Apache-2.0
"""Where memory grows: sums by stack and by connection, the text, the page, and saved files."""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec
import pytest

from stallscope.analyzers import memory as analyzer
from stallscope.base.errors import Exit, StallscopeError
from stallscope.main import main
from stallscope.model import memory as model
from stallscope.model.capture import Thread
from stallscope.model.memory import (
    Growth,
    GrowthStack,
    Held,
    Malloc,
    MemoryReport,
    Program,
    ThreadName,
    Toucher,
)
from stallscope.reporters import memory as reporter
from stallscope.reporters.html import memorypage
from stallscope.reporters.html.assets import Assets

__all__: list[str] = []

MIB = 1 << 20
OPEN = ("memset", "ha_partition::open(char const*, int, unsigned int)", "open_table", "do_command")
SORT = ("my_malloc", "filesort", "do_command")


def growth(**changes: object) -> Growth:
    """Return 40 MiB of growth: 30 of them opened by one connection, 8 sorted, 2 without stack."""
    made = Growth(
        pid=7,
        comm="mysqld",
        exe="/usr/sbin/mysqld",
        seconds=30.0,
        before=Held(rss=100 * MIB, anonymous=80 * MIB, mapped=100 * MIB),
        after=Held(rss=140 * MIB, anonymous=110 * MIB, swap=10 * MIB, mapped=300 * MIB),
        added_bytes=40 * MIB,
        seen_bytes=40 * MIB,
        malloc=Malloc(arenas=3, system_bytes=100 * MIB, free_bytes=5 * MIB, top_bytes=MIB),
        faults={"touch": 10240, "call": 0, "populate": 0},
        lost={"faults_no_room": 0},
        programs=(Program("page_fault_user", works=True),),
        stacks=(GrowthStack(1, OPEN), GrowthStack(2, SORT)),
        touchers=(
            Toucher(1, 11, "touch", 5120, 20 * MIB),
            Toucher(1, 12, "touch", 2560, 10 * MIB),
            Toucher(2, 12, "touch", 2048, 8 * MIB),
            Toucher(0, 13, "touch", 512, 2 * MIB),
        ),
        threads=(ThreadName(11, "mysqld"),),
    )
    return msgspec.structs.replace(made, **changes)


THREADS = {
    11: Thread(11, name="mysqld", connection=5, user="app", host="10.0.0.1", query="SELECT ?"),
    12: Thread(12, name="mysqld", connection=6, user="app"),
    14: Thread(14, name="mysqld", connection=9),
}


def text(report: MemoryReport, width: int = 80) -> str:
    lines = [line.text for line in reporter.render(report, width=width)]
    assert all(len(line) <= width for line in lines), lines
    return "\n".join(lines)


def test_stacks_have_their_sums_and_shares() -> None:
    report = analyzer.report(growth(), THREADS, server="mysqld")
    assert report.growth_bytes == 40 * MIB
    assert report.attributed_bytes == 38 * MIB
    assert report.attributed_share == 0.95
    first, second, unknown = report.stacks
    assert first.bytes == 30 * MIB
    assert first.threads == 2
    assert first.frames[1] == "ha_partition::open"
    assert first.place[0] == "ha_partition::open"
    assert second.place[0] == "filesort"
    assert unknown.frames == ()
    assert report.heaviest == ("do_command", "open_table", "ha_partition::open")
    assert report.heaviest_bytes == 30 * MIB
    assert report.complete


def test_connections_have_what_their_threads_took() -> None:
    report = analyzer.report(growth(), THREADS)
    assert [thread.connection for thread in report.threads] == [5, 6, None]
    assert [thread.bytes for thread in report.threads] == [20 * MIB, 18 * MIB, 2 * MIB]
    assert report.connections == 3
    assert report.bytes_per_connection == 38 * MIB / 3
    assert "SELECT ?" in text(report)


def test_unknown_is_not_zero() -> None:
    report = analyzer.report(growth(), {})
    assert report.connections is None
    assert report.bytes_per_connection is None
    small = growth(after=Held(anonymous=80 * MIB + 4096), touchers=())
    report = analyzer.report(small, {})
    assert report.attributed_share is None
    assert report.growth_bytes == 4096
    cut = analyzer.report(growth(cut=True), {})
    assert cut.freed_bytes is None
    assert cut.attributed_share is None
    assert not cut.complete


def test_what_was_freed_is_added_to_what_grew() -> None:
    report = analyzer.report(growth(freed_bytes=10 * MIB, before=Held(anonymous=90 * MIB)), {})
    assert report.growth_bytes == 30 * MIB
    assert report.added_bytes == 40 * MIB
    assert report.attributed_share == 0.95
    assert "10 MiB of what it had were freed" in " ".join(text(report).split())


def test_a_server_that_ends_has_no_growth() -> None:
    report = analyzer.report(growth(ended=True, after=None, malloc=None), {})
    assert report.growth_bytes is None
    assert report.attributed_share is None
    assert report.stacks[0].bytes == 7680 * 4096
    assert not report.complete
    assert "ended while it was recorded" in text(report)


def test_kinds_are_apart() -> None:
    touchers = (
        Toucher(1, 11, "touch", 256, MIB, on_stack=True),
        Toucher(1, 11, "call", 256, MIB),
        Toucher(1, 11, "populate", 256, MIB),
        Toucher(1, 11, "touch", 1, 0, hugetlb_bytes=2 * MIB),
    )
    report = analyzer.report(growth(touchers=touchers), {})
    assert {stack.kind for stack in report.stacks} == {"stack", "call", "populate", "hugetlb"}
    assert report.thread_stack_bytes == MIB
    assert "direct I/O" in text(report)


@pytest.mark.parametrize(
    ("frames", "place"),
    [
        (("__memset_avx512_unaligned_erms", "row_create_prebuilt"), "row_create_prebuilt"),
        (("_int_malloc", "malloc", "operator new(unsigned long)", "THD::THD()"), "THD::THD"),
        (("libc.so.6+0x181018", "buf_page_init_for_read"), "buf_page_init_for_read"),
        (("alloc_root", "open_table_from_share"), "open_table_from_share"),
        (("libjemalloc.so.2+0x8a630", "libjemalloc.so.2+0x8ad21", "f"), "f"),
        (("malloc", "memset"), "malloc"),
        (("base_list_push", "f"), "base_list_push"),
    ],
)
def test_memory_belongs_to_the_function_that_asked_for_it(
    frames: tuple[str, ...], place: str
) -> None:
    assert analyzer.place(analyzer.clean_stack(frames))[0] == place


def test_text_says_what_matters_first() -> None:
    shown = text(analyzer.report(growth(), THREADS))
    assert shown.startswith("mysqld (pid 7) grew by 40 MiB in 30 s.")
    assert "stacks explain 95.0 %" in shown
    assert "30 MiB (75 %) under: do_command > open_table > ha_partition::open" in shown
    assert "malloc holds 6 MiB (6 %) of 100 MiB free" in " ".join(shown.split())
    assert "address space (touched or not) grew by 200 MiB" in " ".join(shown.split())
    for width in (40, 200):
        text(analyzer.report(growth(), THREADS), width)


def test_shrinking_and_standing_still() -> None:
    less = growth(after=Held(anonymous=70 * MIB), touchers=(), freed_bytes=10 * MIB)
    assert "shrank by 10 MiB" in text(analyzer.report(less, {}))
    same = growth(after=Held(anonymous=80 * MIB), touchers=())
    assert "did not grow" in text(analyzer.report(same, {}))


def test_hostile_names_stay_inert() -> None:
    bad = growth(
        exe="/x/\x1b[2J",
        stacks=(GrowthStack(1, ("\x1b]0;x\x07", "</script><script>alert(1)")), GrowthStack(2, ())),
    )
    report = analyzer.report(bad, {11: Thread(11, name="\x1b[31m", query="</script>")})
    assert "\x1b" not in text(report)
    page = memorypage.render(report, Assets("", "", "")).decode()
    assert "\x1b" not in page
    assert "</script><script>alert" not in page


def test_the_page_has_the_flame_graph_and_the_tables() -> None:
    report = analyzer.report(growth(), THREADS, server="mysqld")
    page = memorypage.render(report, Assets("/**/", "", "licences")).decode()
    start = page.index('id="data">') + len('id="data">')
    value = json.loads(page[start : page.index("</script>", start)])
    assert value["kind"] == "memory"
    rows = value["captures"][0]["rows"]
    assert rows[1::2] == [30 * MIB, 8 * MIB, 2 * MIB]
    names = [value["texts"][value["names"][name][0]] for name in value["stacks"][rows[0]]]
    assert names[1] == "ha_partition::open"
    assert 'id="flame-chart"' in page
    assert "SELECT ?" in page


def test_a_saved_report_is_read_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = analyzer.report(growth(), THREADS, server="mysqld")
    path = tmp_path / "growth.json"
    path.write_bytes(model.encode(report))
    assert model.decode_report(path.read_bytes(), "x") == report
    assert main(["analyze", str(path)]) == Exit.DONE
    assert capsys.readouterr().out == text(report) + "\n"
    assert main(["analyze", "--json", str(path)]) == Exit.DONE
    value = json.loads(capsys.readouterr().out)
    assert value["schema"] == "stallscope.memory/1"
    assert {"growth_bytes", "attributed_share", "stacks"} <= set(value)
    assert {"bytes", "frames"} <= set(value["stacks"][0])


def test_a_report_can_be_written_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    web = tmp_path / "web"
    web.mkdir()
    for name in ("report.js", "report.css", "licences.txt"):
        (web / name).write_text("")
    monkeypatch.setenv("STALLSCOPE_WEB", str(web))
    path, page = tmp_path / "growth.json", tmp_path / "growth.html"
    path.write_bytes(model.encode(analyzer.report(growth(), THREADS)))
    assert main(["report", str(path), "-o", str(page)]) == Exit.DONE
    assert os.stat(page).st_mode & 0o777 == 0o600
    assert "grew by 40 MiB" in capsys.readouterr().out


@pytest.mark.parametrize(
    "data",
    [
        b'{"schema":"stallscope.memory/1"}',
        b'{"schema":"stallscope.memory/1","source":"live","growth_bytes":"x"}',
        b'{"schema":"stallscope.memory/2","source":"live"}',
        b'{"schema":"stallscope.memory/1",' + b"[" * 100_000,
    ],
)
def test_damaged_reports_are_one_line(
    data: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(data)
    assert main(["analyze", str(path)]) == Exit.FAILED
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "not a valid memory report" in error


def test_lines_of_the_probe_are_checked() -> None:
    assert model.decode_growth(b'{"type":"ready","pid":1}') is None
    for bad in (b"{", b'{"type":"end"}', b'{"type":"end","pid":1,"seconds":1,"before":{"rss":-1}}'):
        with pytest.raises(StallscopeError, match="invalid line"):
            model.decode_growth(bad)
