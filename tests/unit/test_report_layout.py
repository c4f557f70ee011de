# SPDX-License-Identifier: Apache-2.0
"""The HTML report: nothing covers anything, nothing empty is shown, and all can be reached."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from stallscope.analyzers import catalog, engine
from stallscope.model.waitlines import WaitLine, loads
from stallscope.reporters.html import histograms, waitgraph
from tests.needs import AXE
from tests.unit.reportpages import Opener, report, says, texts
from tests.unit.reports import (
    START_NS,
    burst,
    busy,
    locked,
    saved,
    store_incident,
    waits_line,
)

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.needs("chromium", "web"), pytest.mark.large]

CASES = Path(__file__).resolve().parents[2] / "docs" / "cases"
TABBABLE = (
    "a[href], button, input, select, summary, [tabindex='0']"  # radio buttons: one of a group
)


def incident_of(folder: Path, captures: int, apart_ns: int) -> Path:
    made = [busy(20, time_ns=START_NS + number * apart_ns) for number in range(captures)]
    return report(folder, store_incident(folder / "store", made))


@pytest.fixture
def comparison(tmp_path: Path) -> Path:
    calm = saved(busy(4), tmp_path / "calm.jsonl.zst")
    stalled = saved(busy(20), tmp_path / "stall.jsonl.zst")
    return report(tmp_path, calm, stalled, "--compare")


def places(page: Page, selector: str) -> list[tuple[float, float, float, float]]:
    found: list[list[float]] = page.eval_on_selector_all(
        selector,
        """all => all.map(e => {
            const r = e.getBoundingClientRect();
            return [r.left, r.top, r.right, r.bottom];
        })""",
    )
    return [(a, b, c, d) for a, b, c, d in found]


@pytest.mark.parametrize(
    ("captures", "apart_ns", "width"),
    [(5, 10**6, 1280), (60, 10**6, 1280), (60, 10**9 // 3, 390), (130, 10**8, 1280)],
)
def test_no_mark_is_hidden_by_another(
    captures: int, apart_ns: int, width: int, tmp_path: Path, opened: Opener
) -> None:
    with opened(incident_of(tmp_path, captures, apart_ns), width=width) as page:
        page.wait_for_selector(".plot canvas")
        marks = places(page, "#marks .mark")
        assert len(marks) == captures
        box = page.locator("#marks").bounding_box()
        for left, top, right, bottom in marks:
            assert left >= box["x"] - 1
            assert right <= box["x"] + box["width"] + 1
            assert top >= box["y"] - 1
            assert bottom <= box["y"] + box["height"]
        for number, one in enumerate(marks):
            for other in marks[number + 1 :]:
                apart = one[2] <= other[0] or other[2] <= one[0]
                assert apart or one[3] <= other[1] or other[3] <= one[1]
        page.locator(f"[data-mark='{captures - 1}']").click()
        says(page, "#picked", f"{captures} of {captures}")


def test_a_threshold_is_in_the_words_of_its_chart(tmp_path: Path, opened: Opener) -> None:
    with opened(incident_of(tmp_path, 3, 10**9)) as page:
        captions = texts(page, ".plot figcaption")
        assert captions[0] == "threads running (Threads_running); threshold 40", "it changed most"
        assert sum("threshold" in caption for caption in captions) == 1
        # The line itself: the row of pixels that is most often red.
        red = page.evaluate(
            """() => {
                const canvas = document.querySelector('.plot canvas');
                const { width, height } = canvas;
                const { data } = canvas.getContext('2d').getImageData(0, 0, width, height);
                const rows = new Map();
                for (let i = 0; i < data.length; i += 4)
                    if (data[i] - data[i + 1] > 60 && data[i + 3] > 100) {
                        const row = Math.floor(i / 4 / width);
                        rows.set(row, (rows.get(row) ?? 0) + 1);
                    }
                return Math.max(0, ...rows.values());
            }"""
        )
        assert red > 100


def test_a_comparison_begins_with_what_changed(comparison: Path, opened: Opener) -> None:
    with opened(comparison) as page:
        changed = page.locator("#changes").bounding_box()
        assert changed["y"] < 100
        assert changed["y"] + changed["height"] < 900
        assert page.locator("#plots, .plot, #marks").count() == 0, "two points are no course"
        assert texts(page, "#timeline > h2") == ["Captures"]
        page.locator("[data-show='0']").click()
        says(page, "#picked", "1 of 2")


def test_colours_of_a_difference_are_explained(comparison: Path, opened: Opener) -> None:
    with opened(comparison) as page:
        assert texts(page, "#flame-legend li") == [
            "\N{MINUS SIGN}: fewer threads after",
            "no change",
            "+: more threads after",
        ]
        style = "e => getComputedStyle(e)"
        more = page.locator("#flame-legend .d-up").evaluate(f"{style}.backgroundColor")
        drawn = page.locator("#flame-chart g.frame[name=__lll_lock_wait] path")
        assert drawn.evaluate(f"{style}.fill") == more
        names = page.locator("#flame-chart .texts text").all_text_contents()
        assert "+16 __lll_lock_wait" in names, "not by colour alone"
        page.locator("#flame-difference").uncheck()
        assert "fewer" not in page.locator("#flame-legend").inner_text()


def lines_of(*keys: dict[str, Any]) -> list[WaitLine]:
    line = json.loads(waits_line())
    line["keys"] = list(keys)
    found = loads(msgspec.json.encode(line), "x", 1)
    assert isinstance(found, WaitLine)
    return [found]


FSYNC = {
    "kind": "fdatasync", "name": "/var/lib/mysql/ib_logfile0", "count": 7, "total_ms": 640.0,
    "max_ms": 401.5, "over": 2,
    "waiters": [{"count": 2, "frames": ["fdatasync", "f(THD*)"], "tid": 100}],
}  # fmt: skip


def test_what_hardly_waited_is_left_out() -> None:
    small = [
        {"kind": "read", "name": f"/tmp/#sql{i}", "count": 9, "total_ms": 0.01, "max_ms": 0.01}
        for i in range(50)
    ]
    rows, others = histograms.keys(lines_of(FSYNC, *small))
    assert [row.name for row in rows] == ["/var/lib/mysql/ib_logfile0"]
    assert others == 50
    assert rows[0].waiter == "fdatasync < f"
    over = {**small[0], "over": 1}
    assert len(histograms.keys(lines_of(FSYNC, over))[0]) == 2, "above its threshold"


def test_empty_columns_are_left_out_and_words_are_whole(tmp_path: Path, opened: Opener) -> None:
    folder = store_incident(tmp_path / "store", [busy()])
    with opened(report(tmp_path, folder), width=700) as page:
        heads = texts(page, "#keys th")
        assert heads == [
            "Kind", "Lock or file", "Waits", "Total", "Longest", "At once", "Waiter",
        ]  # fmt: skip
        broken = page.eval_on_selector_all(
            "#keys td",
            """cells => cells.flatMap(cell => {
                const walker = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
                const out = [];
                for (let node = walker.nextNode(); node; node = walker.nextNode())
                    for (const word of node.data.matchAll(/\\S{1,20}(?=\\s|$)/g)) {
                        const range = document.createRange();
                        range.setStart(node, word.index);
                        range.setEnd(node, word.index + word[0].length);
                        if (range.getClientRects().length > 1) out.push(word[0]);
                    }
                return out;
            })""",
        )
        assert broken == []


def test_a_box_says_which_file_its_thread_waits_for() -> None:
    files = histograms.files(lines_of(FSYNC))
    assert files == {100: "fdatasync of /var/lib/mysql/ib_logfile0"}
    graph = waitgraph.build(engine.analyze(busy(), catalog.load()), files)
    assert [node.get("file") for node in graph["nodes"] if node["kind"] == "thread"] == [
        "fdatasync of …/mysql/ib_logfile0"
    ]


def test_the_text_of_a_box_is_copied(tmp_path: Path, opened: Opener) -> None:
    path = saved(busy(), tmp_path / "stall.jsonl.zst")
    with opened(report(tmp_path, path)) as page:
        page.evaluate(
            "Object.defineProperty(navigator, 'clipboard',"
            " {value: {writeText: async (text) => { window.copied = text; }}})"
        )
        button = page.locator(".copybox").first
        button.focus()
        page.keyboard.press("Enter")
        says(page, ".copybox text >> nth=0", "Copied")
        copied = page.evaluate("window.copied")
        assert copied.startswith("connection 10\napp, shop")
        assert copied.endswith("SELECT c FROM sbtest1 WHERE id = ?")
        says(page, ".copybox text >> nth=0", "Copy")
        assert "threads=" not in page.url, "its box was not chosen"


def test_a_menu_says_that_there_is_more(tmp_path: Path, opened: Opener) -> None:
    with opened(incident_of(tmp_path, 2, 10**9), width=390) as page:
        page.wait_for_selector(".top nav.more")
        page.locator(".top nav").evaluate("nav => nav.scrollTo(nav.scrollWidth, 0)")
        page.wait_for_selector(".top nav:not(.more)")
        page.set_viewport_size({"width": 1280, "height": 900})
        assert page.locator(".top nav.more").count() == 0


def test_a_phone_shows_a_thread_as_a_block(tmp_path: Path, opened: Opener) -> None:
    path = saved(busy(), tmp_path / "stall.jsonl.zst")
    with opened(report(tmp_path, path), width=390) as page:
        row = page.locator("#thread-table tbody tr").first
        place = row.bounding_box()
        assert place["width"] < 390
        assert place["height"] < 320
        cells = row.locator("td")
        label = "e => getComputedStyle(e, '::before').content"
        assert cells.first.evaluate(label) == '"Thread"'
        for cell in cells.all():
            if cell.is_visible():
                box = cell.bounding_box()
                assert box["x"] + box["width"] <= 390
        page.locator("th[data-key=tid] button").click()
        assert cells.first.inner_text() == "100"


def test_the_whole_text_of_a_box_is_at_the_pointer(tmp_path: Path, opened: Opener) -> None:
    path = saved(busy(), tmp_path / "stall.jsonl.zst")
    with opened(report(tmp_path, path)) as page:
        page.emulate_media(reduced_motion="reduce")
        page.locator("#drawing .node").last.hover()
        said = page.locator("#tip").inner_text()
        assert said.startswith("20 threads\n")
        assert "threads 101, 102, 103" in said
        page.keyboard.press("Escape")
        assert page.locator("#tip").is_hidden()


def test_a_phone_shows_the_statement_of_an_incident_first(tmp_path: Path, opened: Opener) -> None:
    with opened(incident_of(tmp_path, 3, 10**9), width=390) as page:
        page.set_viewport_size({"width": 390, "height": 844})
        box = page.locator("#verdict .endings").bounding_box()
        assert box["y"] + 60 < 844
        assert page.locator("#verdict .headline").bounding_box()["y"] < 400


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_that_acts_is_reached_by_tab_with_a_visible_focus(
    scheme: str, tmp_path: Path, opened: Opener
) -> None:
    captures = [burst(busy(), busy(), ran="ut_delay, mutex_spin_wait"), busy(30)]
    page_path = report(tmp_path, store_incident(tmp_path / "store", captures))
    with opened(page_path, scheme=scheme) as page:
        page.emulate_media(reduced_motion="reduce", color_scheme=scheme)
        page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
        page.evaluate(
            f"""() => [...document.querySelectorAll("{TABBABLE}")]
                .filter(e => e.checkVisibility() && !e.disabled && e.tabIndex >= 0)
                .filter(e => e.type !== 'radio' || e.checked)
                .forEach((e, i) => {{ e.dataset.n = i; }})"""
        )
        wanted = page.locator("[data-n]").count()
        assert wanted > 40
        seen: set[str] = set()
        for _ in range(wanted + 20):
            page.keyboard.press("Tab")
            number, outline = page.evaluate(
                """() => {
                    const e = document.activeElement;
                    const s = getComputedStyle(e);
                    const ring = s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) >= 2;
                    return [e.dataset.n ?? '', ring || e === document.body];
                }"""
            )
            assert outline, page.evaluate("document.activeElement.outerHTML.slice(0, 200)")
            seen.add(number)
        missed = page.eval_on_selector_all(
            "[data-n]",
            "(all, seen) => all.filter(e => !seen.includes(e.dataset.n))"
            ".map(e => e.outerHTML.slice(0, 120))",
            sorted(seen),
        )
        assert missed == []


@pytest.mark.needs("pdftotext")
def test_real_bursts_are_four_pages_on_paper(tmp_path: Path, opened: Opener) -> None:
    with opened(report(tmp_path, *[CASES / "deadlock-check.jsonl.zst"] * 3)) as page:
        page.pdf(path=tmp_path / "report.pdf", format="A4")
        assert page.locator("#thread-table tbody tr").count() == 190, "all are back"
    done = subprocess.run(
        ["pdftotext", "-layout", tmp_path / "report.pdf", "-"], capture_output=True, check=True
    )
    text = done.stdout.decode()
    assert "175 more are in the file." in text
    assert "What the numbers mean" in text
    assert text.count("\f") <= 4


@pytest.mark.needs("axe")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(scheme: str, comparison: Path, tmp_path: Path, browser: Browser) -> None:
    """The page's policy lets no other script run: axe runs where it is switched off."""
    from tests.support.browser import READY, axe_finds_nothing

    running = burst(busy(), busy(), ran="ut_delay, mutex_spin_wait")
    others = [tmp_path / name for name in ("burst", "locked", "incident")]
    for other in others:
        other.mkdir()
    pages = (
        comparison,
        report(others[0], saved(running, others[0] / "burst.jsonl.zst")),
        report(others[1], saved(locked(), others[1] / "row.jsonl.zst")),
        incident_of(others[2], 2, 10**9),
    )
    for path in pages:
        context = browser.new_context(bypass_csp=True, color_scheme=scheme)  # type: ignore[arg-type]
        try:
            page = context.new_page()
            page.goto(f"{path.as_uri()}#flame=time")
            page.wait_for_selector(READY)
            page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
            assert axe_finds_nothing(page, AXE.read_text())
        finally:
            context.close()
