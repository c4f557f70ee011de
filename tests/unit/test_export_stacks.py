# SPDX-License-Identifier: Apache-2.0
"""Stacks in the formats of other tools, as these tools read them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import jsonschema
import msgspec
import pytest

from stallscope.reporters.export import folded, pprof, speedscope, svg
from stallscope.reporters.export.source import Entry, Options
from tests.needs import FLAMEGRAPH, SPEEDSCOPE
from tests.support.servers import wait_until
from tests.unit.exports import (
    counted,
    dumps,
    entry,
    hostile,
    pprof_program,
    raw,
    run,
    series,
    total,
)

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SVG = "{http://www.w3.org/2000/svg}"
EVERYTHING = ("-nodecount=100000", "-nodefraction=0", "-edgefraction=0")
SETS = ["series", "dumps", "counted"]


@pytest.fixture(params=SETS)
def entries(request: pytest.FixtureRequest) -> Sequence[Entry]:
    made: dict[str, Callable[[], Sequence[Entry]]] = {
        "series": series,
        "dumps": dumps,
        "counted": lambda: [counted()],
    }
    return made[request.param]()


def pprof_file(tmp_path: Path, entries: Sequence[Entry], options: Options | None = None) -> Path:
    path = tmp_path / "profile.pb.gz"
    path.write_bytes(b"".join(pprof.render(entries, options or Options())))
    return path


def go_pprof(path: Path, *words: str) -> str:
    # It prints times of the local time zone.
    return run("env", "TZ=UTC", *pprof_program(), "-symbolize=none", *words, path)


class TestFolded:
    def lines(self, entries: Sequence[Entry], options: Options) -> list[tuple[str, int]]:
        text = b"".join(folded.render(entries, options)).decode()
        return [(stack, int(n)) for stack, _, n in (x.rpartition(" ") for x in text.splitlines())]

    def test_total(self, entries: Sequence[Entry]) -> None:
        assert sum(count for _, count in self.lines(entries, Options())) == total(entries)

    @pytest.mark.needs("flamegraph")
    def test_flamegraph_counts_the_same(self, entries: Sequence[Entry], tmp_path: Path) -> None:
        path = tmp_path / "a.folded"
        path.write_bytes(b"".join(folded.render(entries, Options(kernel=True, states=True))))
        drawn = run("perl", FLAMEGRAPH, path)
        match = re.search(r"\ball \(([\d,]+) samples, 100%", drawn)
        assert match is not None
        assert int(match.group(1).replace(",", "")) == total(entries)

    def test_outermost_first_with_thread_and_state(self) -> None:
        lines = dict(self.lines(series(1), Options(threads=True, states=True, kernel=True)))
        stack = "open_table;pthread_mutex_lock;__lll_lock_wait;futex_wait_queue_[k]"
        assert lines[f"mysqld-101;[waiting];{stack}"] == 1
        assert lines["thread-900;[running];[no stack]"] == 1

    def test_idle_threads_can_be_left_out(self) -> None:
        idle = sum(group.count for item in dumps() for group in item.analysis.groups if group.idle)
        assert idle
        lines = self.lines(dumps(), Options(idle=False))
        assert sum(count for _, count in lines) == total(dumps()) - idle

    @pytest.mark.needs("flamegraph")
    def test_names_that_look_like_the_format(self, tmp_path: Path) -> None:
        path = tmp_path / "a.folded"
        # Two numbers at the end of a line are a stack before and after.
        path.write_bytes(b"".join(folded.render([raw("a;b 12", "c 3.5")], Options())))
        assert path.read_bytes() == b"c 3.5;a:b_12 1\n"
        assert "all (1 samples, 100%)" in run("perl", FLAMEGRAPH, path)


class TestSpeedscope:
    @pytest.mark.needs("speedscope")
    def test_its_own_schema(self, entries: Sequence[Entry]) -> None:
        schema = json.loads((SPEEDSCOPE / "file-format-schema.json").read_text())
        for options in (Options(), Options(kernel=True, threads=True, states=True)):
            value = json.loads(b"".join(speedscope.render(entries, options)))
            jsonschema.validate(value, schema)

    def test_a_profile_a_capture_and_one_of_all(self, entries: Sequence[Entry]) -> None:
        value = json.loads(b"".join(speedscope.render(entries, Options())))
        each = [sum(profile["weights"]) for profile in value["profiles"]]
        assert each[: len(entries)] == [total([item]) for item in entries]
        assert each[value["activeProfileIndex"]] == total(entries)
        for profile in value["profiles"]:
            assert profile["endValue"] == sum(profile["weights"])
            assert len(profile["weights"]) == len(profile["samples"])
            last = max(index for stack in profile["samples"] for index in stack)
            assert last < len(value["shared"]["frames"])


@pytest.mark.needs("speedscope", "chromium")
@pytest.mark.large
class TestInSpeedscopeItself:
    """Its sandwich view has the threads of each function as text."""

    @pytest.fixture
    def page(self, browser: Browser) -> Page:
        from tests.support.browser import new_page

        return new_page(browser)

    def functions(self, page: Page, path: Path) -> dict[str, tuple[int, int]]:
        """Return each function's threads: in it or below, and in itself."""
        page.goto((SPEEDSCOPE / "index.html").as_uri())
        page.set_input_files("input[type=file]", path)
        page.get_by_text("Sandwich").click()
        page.wait_for_selector("text=Symbol Name")
        # The rows come when the view knows its height.
        return wait_until(lambda: self.rows(page), "the functions are shown")

    def rows(self, page: Page) -> dict[str, tuple[int, int]]:
        """Return what the table of functions has at one moment."""
        found = {}
        for cells in page.eval_on_selector_all(
            "tr", "all => all.map(row => [...row.querySelectorAll('td')].map(c => c.innerText))"
        ):
            if len(cells) == 3 and "%" in cells[0]:
                whole, own = (int(cell.split()[0].replace(",", "")) for cell in cells[:2])
                found[cells[2].strip()] = (whole, own)
        return found

    @pytest.mark.parametrize("form", ["speedscope", "folded", "pprof"])
    def test_opens(self, page: Page, tmp_path: Path, form: str) -> None:
        renders = {"speedscope": speedscope.render, "folded": folded.render, "pprof": pprof.render}
        suffix = {"speedscope": "json", "folded": "txt", "pprof": "pb.gz"}[form]
        path = tmp_path / f"stall.{suffix}"
        path.write_bytes(b"".join(renders[form](series(3), Options())))
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        found = self.functions(page, path)
        # Two, three and four waiters, and their holder in each of three captures.
        assert found["__lll_lock_wait"] == (9, 9)
        assert found["open_table"] == (12, 0)
        assert found["pread64"] == (3, 3)
        assert found["[no stack]"] == (3, 3)
        assert not errors


@pytest.mark.needs("go")
@pytest.mark.large
class TestPprof:
    def test_total(self, entries: Sequence[Entry], tmp_path: Path) -> None:
        shown = go_pprof(pprof_file(tmp_path, entries), "-top", *EVERYTHING)
        count = total(entries)
        assert f"Showing nodes accounting for {count}, 100% of {count} total" in shown

    def test_tree(self, tmp_path: Path) -> None:
        shown = go_pprof(pprof_file(tmp_path, series(1)), "-tree")
        called = re.search(r"2\s+66.67% \|\s+pthread_mutex_lock", shown)
        assert called is not None, shown

    def test_raw(self, tmp_path: Path) -> None:
        shown = go_pprof(pprof_file(tmp_path, series(1), Options(kernel=True)), "-raw")
        assert "threads/count[dflt]" in shown
        assert "lock:[LOCK_open] state:[waiting] thread:[mysqld] tid:[101]" in shown
        assert "1: 0x400000/0x900000/0x0 /usr/sbin/mysqld 0123456789abcdef [FN]" in shown
        # The innermost has its own address, a caller that of its call.
        assert re.search(r"0x401000 M=1 __lll_lock_wait ", shown)
        assert re.search(r"0x401001 M=1 open_table .*open_table\(THD\*, TABLE_LIST\*\)", shown)
        assert "Time: 2025-11-21 08:46:36.123456789 +0000 UTC" in shown

    def test_labels(self, tmp_path: Path) -> None:
        shown = go_pprof(pprof_file(tmp_path, series(3)), "-tags")
        # Debian 12's Go 1.19 writes "9.0", later ones "9 of 15 (60.00%)".
        assert re.search(r"lock: Total 9(\.0| of 15 .*)\n\s+9(\.0)? .*: LOCK_open", shown)
        shown = go_pprof(pprof_file(tmp_path, series(3)), "-top", "-tagfocus=lock=LOCK_open")
        assert "accounting for 9, 60.00% of 15 total" in shown

    def test_time_waited(self, tmp_path: Path) -> None:
        path = pprof_file(tmp_path, [entry(hostile("f"))])
        assert "1s, 100% of 1s total" in go_pprof(path, "-top", "-sample_index=waited")
        assert "waited" not in go_pprof(pprof_file(tmp_path, series(1)), "-raw")

    def test_source_lines(self, tmp_path: Path) -> None:
        shown = go_pprof(pprof_file(tmp_path, dumps()), "-raw")
        assert re.search(r"pthread_cond_wait \S*pthread_cond_wait\.c:\d+", shown)

    def test_addresses_of_64_bits(self, tmp_path: Path) -> None:
        capture = hostile("f")
        high = msgspec.structs.replace(capture.threads[1].frames[0], pc=(1 << 64) - 1)
        thread = msgspec.structs.replace(capture.threads[1], frames=(high,))
        capture = msgspec.structs.replace(capture, threads=(thread,))
        assert "0xffffffffffffffff" in go_pprof(pprof_file(tmp_path, [entry(capture)]), "-raw")


@pytest.mark.large
class TestSvg:
    def root(self, entries: Sequence[Entry], options: Options | None = None) -> ElementTree.Element:
        return ElementTree.fromstring(b"".join(svg.render(entries, options or Options())))

    def tips(self, root: ElementTree.Element) -> dict[str, int]:
        """Return the widest frame of each name: its threads."""
        found: dict[str, int] = {}
        for group in root.iter(f"{SVG}g"):
            tip = group.findtext(f"{SVG}title") or ""
            name, _, rest = tip.rpartition(": ")
            count = int(rest.split()[0].replace(",", ""))
            found[name] = max(count, found.get(name, 0))
        return found

    def test_total(self, entries: Sequence[Entry]) -> None:
        root = self.root(entries)
        said = [text.text or "" for text in root.iter(f"{SVG}text")]
        assert any(text.startswith(f"{total(entries):,} threads") for text in said)
        # The lowest row is as wide as all threads together, but for what cannot be seen.
        boxes = [group.find(f"{SVG}rect") for group in root.iter(f"{SVG}g")]
        rows = [box.attrib for box in boxes if box is not None]
        lowest = max(int(row["y"]) for row in rows)
        width = sum(float(row["width"]) for row in rows if int(row["y"]) == lowest)
        assert width == pytest.approx(1180, rel=0.01)

    def test_tooltips(self) -> None:
        tips = self.tips(self.root(series(3)))
        assert tips["open_table"] == 12
        assert tips["__lll_lock_wait"] == 9

    def test_colours_are_of_subsystems(self) -> None:
        fills = {}
        for group in self.root(dumps()).iter(f"{SVG}g"):
            box = group.find(f"{SVG}rect")
            assert box is not None
            fills[(group.findtext(f"{SVG}title") or "").partition(":")[0]] = box.attrib["fill"]
        assert fills["mysql_parse"] == fills["dispatch_command"] != fills["poll"]

    @pytest.mark.needs("chromium")
    def test_in_a_browser(self, browser: Browser, tmp_path: Path) -> None:
        path = tmp_path / "stall.svg"
        path.write_bytes(b"".join(svg.render(dumps(), Options(title="</title><script>"))))
        from tests.support.browser import new_page

        asked: list[str] = []
        said: list[str] = []
        page = new_page(browser)
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto(path.as_uri())
        size = page.evaluate(
            "(() => { const b = [...document.querySelectorAll('g')].find("
            "g => g.textContent.startsWith('mysql_parse')).getBoundingClientRect();"
            " return [b.width, b.height]; })()"
        )
        assert asked == [path.as_uri()]
        assert not said
        assert size[0] > 20
        assert size[1] >= 16
