# SPDX-License-Identifier: Apache-2.0
"""The flame graph of the HTML report: merged, over time, of what ran; its tooltip and its link."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from stallscope.analyzers import catalog, engine
from stallscope.model.capture import Capture, Frame, Thread
from stallscope.reporters.html import assets, pack
from stallscope.reporters.html.pack import Entry
from stallscope.reporters.html.page import Builder
from tests.unit.reportpages import Opener, boxes, report, says, texts
from tests.unit.reports import START_NS, burst, busy, saved, store_incident, value

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

pytestmark = [pytest.mark.needs("chromium", "web"), pytest.mark.large]

RAN = "ut_delay, mutex_spin_wait, row_search_mvcc, handle_one_connection"
MUTEX = "#flame-chart g.frame[name=pthread_mutex_lock]"


def healthy(capture: Capture) -> Capture:
    """Return the capture with its idle threads alone."""
    return msgspec.structs.replace(capture, threads=capture.threads[-5:], locks=())


def begins() -> Capture:
    """Return a burst in which a stall begins at the third of four captures."""
    quiet, stalled = healthy(busy()), busy()
    return burst(quiet, quiet, stalled, stalled, ran=RAN)


@pytest.fixture
def page_of_a_burst(tmp_path: Path) -> Path:
    return report(tmp_path, saved(begins(), tmp_path / "burst.jsonl.zst"))


@pytest.fixture
def page_of_an_incident(tmp_path: Path) -> Path:
    captures = [
        burst(*(busy(20, time_ns=START_NS + second * 10**9) for _ in range(3)), ran=RAN)
        for second in (0, 5, 20)
    ]
    return report(tmp_path, store_incident(tmp_path / "store", captures))


def axis(page: Page) -> list[str]:
    return [text or "" for text in page.locator("#flame-chart text.axis").all_text_contents()]


def tip(page: Page) -> str:
    return page.locator("#tip").inner_text()


def left(box: Locator) -> float:
    place = box.bounding_box()
    assert place is not None
    return place["x"]


def test_over_time_a_stall_has_its_place(page_of_a_burst: Path, opened: Opener) -> None:
    with opened(page_of_a_burst) as page:
        page.locator("#flame-time").check()
        said = axis(page)
        assert [text for text in said if "ms" in text] == ["0 ms", "30 ms", "60 ms", "90 ms"]
        assert [text for text in said if "ms" not in text] == ["0", "0", "21", "21"]
        whole = page.locator("#flame-chart g.frame[name='all threads']").bounding_box()
        mutex = page.locator(MUTEX)
        assert mutex.count() == 1, "one box, with a tooth in each of two columns"
        assert left(mutex) == pytest.approx(whole["x"] + whole["width"] / 2, abs=2)
        mutex.hover(position={"x": 4, "y": 5})
        assert "20 threads, 60 ms to 90 ms, in 2 of 4 columns" in tip(page)
        page.locator("#flame-merged").check()
        assert axis(page) == []


def test_what_ran_is_shown_too(page_of_a_burst: Path, opened: Opener) -> None:
    with opened(page_of_a_burst) as page:
        page.locator("#flame-cpu").check()
        assert list(boxes(page)) == ["all samples", *reversed(RAN.split(", "))]
        says(page, "#flame-details", "all samples: 18 samples (100.0 %)")
        page.locator("#flame-time").check()
        page.locator("#flame-chart g.frame[name=ut_delay]").hover()
        assert "6 samples, 30 ms to 90 ms, in 3 of 4 columns" in tip(page)


def test_captures_of_an_incident_are_in_order(page_of_an_incident: Path, opened: Opener) -> None:
    with opened(page_of_an_incident) as page:
        page.locator("#flame-time").check()
        said = axis(page)
        assert [text for text in said if text.strip("▸ ") in "123"] == ["▸ 1", "2", "3"]
        assert {"0 ms", "5.00 s", "20.00 s"} <= set(said)
        assert page.locator("#flame-chart line.break").count() == 2
        assert page.locator(MUTEX).count() == 3
        page.locator("[data-mark='1']").click()
        assert "▸ 2" in axis(page)
        assert "9 in all" in page.locator("#flame-about").inner_text()


def test_over_time_is_a_table_too(page_of_a_burst: Path, opened: Opener) -> None:
    with opened(page_of_a_burst) as page:
        assert page.locator("#flame-table").is_hidden()
        page.locator("#flame-time").check()
        page.locator("#flame-table summary").click()
        rows = texts(page, "#flame-table tbody tr")
        assert re.search(r"pthread_mutex_lock.*\t20\t60 ms to 90 ms, in 2 of 4 columns", rows[0])
        assert len(rows) == 2


def test_the_address_keeps_a_zoom(page_of_a_burst: Path, opened: Opener) -> None:
    with opened(page_of_a_burst) as page:
        page.locator("#flame-time").check()
        page.locator(MUTEX).click(position={"x": 2, "y": 5})
        zoomed = boxes(page)
        assert zoomed["pthread_mutex_lock"] == zoomed["all threads"]
        assert "flame=time" in page.url
        assert "zoom=" in page.url
        page.reload()
        page.wait_for_selector("html[data-ready]")
        assert boxes(page) == zoomed
        page.locator("#flame-reset").click()
        assert "zoom=" not in page.url


def test_an_address_that_fits_no_box_is_harmless(page_of_a_burst: Path, opened: Opener) -> None:
    with opened(page_of_a_burst) as page:
        for zoom in ("9.9.9", "x", "0." * 900, "-1", "__proto__"):
            page.goto(f"{page_of_a_burst.as_uri()}#flame=time,nothing&zoom={zoom}")
            page.reload()
            page.wait_for_selector("html[data-ready]")
            assert "all threads" in boxes(page)


def test_keys_move_in_time_and_the_tooltip_follows(page_of_a_burst: Path, opened: Opener) -> None:
    with opened(page_of_a_burst) as page:
        page.locator("#flame-merged").focus()
        page.keyboard.press("ArrowRight")
        assert page.locator("#flame-time").is_checked()
        page.locator("#flame-chart").focus()
        assert page.locator("#tip").is_hidden()
        whole = boxes(page)
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowRight")
        name = page.locator("#flame-chart g.focused").get_attribute("name")
        assert tip(page).startswith(f"{name}\n")
        assert page.locator("#flame-details").inner_text().startswith(f"{name}: ")
        page.keyboard.press("Enter")
        assert boxes(page)[str(name)] == boxes(page)["all threads"]
        page.keyboard.press("Escape")
        assert page.locator("#tip").is_hidden()
        assert boxes(page) == whole


def test_the_tooltip_is_at_the_pointer(page_of_a_burst: Path, opened: Opener) -> None:
    with opened(page_of_a_burst, width=390) as page:
        page.emulate_media(reduced_motion="reduce")  # a page that still scrolls hides it
        box = page.locator("#flame-chart g.frame[name='all threads']")
        box.scroll_into_view_if_needed()
        place = box.bounding_box()
        page.mouse.move(place["x"] + place["width"] - 3, place["y"] + 5)
        assert tip(page).startswith("all threads\n21 threads")
        shown = page.locator("#tip").bounding_box()
        assert shown["x"] + shown["width"] <= 390
        assert 0 < shown["y"] - place["y"] < 60
        page.mouse.move(place["x"], place["y"] - 200)
        assert page.locator("#tip").is_hidden()


@pytest.mark.needs("pdftotext")
def test_on_paper_over_time_has_its_axis_and_table(
    page_of_an_incident: Path, tmp_path: Path, opened: Opener
) -> None:
    with opened(page_of_an_incident) as page:
        page.locator("#flame-time").check()
        page.pdf(path=tmp_path / "report.pdf", format="A4")
        assert page.locator("#flame-table").get_attribute("open") is None, "closed again"
    done = subprocess.run(
        ["pdftotext", "-layout", tmp_path / "report.pdf", "-"], capture_output=True, check=True
    )
    text = done.stdout.decode()
    for wanted in ("20.00 s", "Each column is one capture", "9 of 9 columns", "pthread_mutex_lock"):
        assert wanted in text, wanted
    assert text.count("\f") <= 4


def built(*captures: Capture) -> bytes:
    builder = Builder()
    options = engine.Options(moments=True)
    for capture in captures:
        builder.add(engine.analyze(capture, catalog.load(), options=options), Entry("a"))
    return builder.render(assets.load())


def many_stacks(moment: int, count: int, depth: int = 1) -> Capture:
    """Return a capture in which each thread has a stack that no other thread ever has."""
    threads = tuple(
        Thread(
            tid=1 + number,
            frames=tuple(Frame(symbol=f"f{moment}_{number}_{i}") for i in range(depth)),
            state="R",
            on_cpu=True,
        )
        for number in range(count)
    )
    return msgspec.structs.replace(busy(), threads=threads, locks=())


def test_all_threads_are_in_each_moment() -> None:
    data = value(built(begins()))
    (capture,) = data["captures"]
    since = [moment["time"] - capture["moments"][0]["time"] for moment in capture["moments"]]
    assert since == pytest.approx([0, 30, 60, 90], abs=0.01)
    for moment, threads in zip(capture["moments"], (5, 5, 26, 26), strict=True):
        assert sum(moment["stacks"][2::3]) == threads
    assert [sum(moment["ran"][1::2]) for moment in capture["moments"]] == [0, 6, 6, 6]


def test_stacks_of_a_moment_are_bounded(tmp_path: Path, opened: Opener) -> None:
    most = pack.MAX_MOMENT_STACKS
    page_path = tmp_path / "many.html"
    page_path.write_bytes(built(burst(many_stacks(0, most + 50), many_stacks(1, 3))))
    (capture,) = value(page_path.read_bytes())["captures"]
    assert [len(moment["stacks"]) // 3 for moment in capture["moments"]] == [most, 3]
    assert [moment["left_out"] for moment in capture["moments"]] == [50, 0]
    with opened(page_path) as page:
        page.locator("#flame-time").check()
        assert "rare stacks are left out: 50" in page.locator("#flame-about").inner_text()


def test_moments_of_hostile_bursts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack, "MAX_MOMENTS_BYTES", 100_000)
    small = len(built(many_stacks(0, 100, 40)))
    page = built(burst(*(many_stacks(moment, 100, 40) for moment in range(30))))
    assert len(page) - small < 400_000
    (capture,) = value(page)["captures"]
    kept = len(capture["moments"])
    assert 0 < kept < 30
    said = f"{30 - kept} captures of bursts in the flame graph over time: the page would be"
    assert said in page.decode()


def test_of_very_many_captures_those_around_the_shown_one_are_drawn(
    tmp_path: Path, opened: Opener
) -> None:
    quiet = healthy(busy())
    captures = [
        burst(*[busy(2, time_ns=START_NS + second * 10**9)] * 20, *[quiet] * 10)
        for second in range(20)
    ]
    page_path = tmp_path / "many.html"
    page_path.write_bytes(built(*captures))
    with opened(page_path) as page:
        page.locator("#flame-time").check()
        assert "7 captures farther away are left out" in page.locator("#flame-about").inner_text()
        assert page.locator("#flame-chart g.frame").count() < 5_000
