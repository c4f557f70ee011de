# SPDX-License-Identifier: Apache-2.0
"""The HTML report in a real browser."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from stallscope.base.errors import Exit
from stallscope.main import main
from stallscope.model.capture import Capture
from tests.unit.reportpages import Opener, boxes, report, says, texts
from tests.unit.reports import START_NS, busy, hostile, locked, rendered, saved, store_incident

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.needs("chromium", "web"), pytest.mark.large]

PAYLOADS = {
    "end of script": "</script><script>owned=1</script>",
    "comment": "<!--<script>owned=1//",
    "handler": "<img src=x onerror=owned=1>\"'><svg onload=owned=1>",
    "attribute": '" autofocus onfocus="owned=1" x=\'',
    "style": "</style><style>*{display:none}</style><link rel=stylesheet href=http://127.0.0.1/x>",
    "template": "{{ 7*7 }}{% raw %}${owned=1}",
    "steering": "\x1b]0;owned\x07\x00\u202egnp.exe\u2028\u2029\ufeff\u0085",
    "surrogate": "a\udc80b",
    "prototype": "__proto__",
    "long": "A" * 1_000_000,
}


@pytest.fixture
def stalled(tmp_path: Path) -> Path:
    return saved(busy(), tmp_path / "stall.jsonl.zst")


def analysis(path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["analyze", "--json", str(path)]) in (0, Exit.PARTIAL)
    value = json.loads(capsys.readouterr().out)
    assert isinstance(value, dict)
    return value


def number(page: Page, name: str) -> str:
    return page.locator(f"#verdict [data-number={name}]").inner_text()


def test_numbers_are_those_of_the_json(
    stalled: Path, tmp_path: Path, opened: Opener, capsys: pytest.CaptureFixture[str]
) -> None:
    page_path = report(tmp_path, stalled)
    value = analysis(stalled, capsys)
    finding = value["findings"][0]
    with opened(page_path) as page:
        assert number(page, "signature") == finding["signature"] == "table-open-lock"
        assert float(number(page, "confidence")) == round(finding["confidence"], 2)
        for name in ("waiting", "running", "idle", "total"):
            assert int(number(page, name)) == value["threads"][name]
        assert str(finding["blocker"]["tid"]) in number(page, "blocker")
        assert f"{finding['threads']} of {value['threads']['total']} threads" in page.title()
        shown = [
            (int(count), state)
            for count, state in zip(
                texts(page, "#stack-list .count"), texts(page, "#stack-list .state"), strict=True
            )
        ]
        assert shown == [(group["count"], group["state"]) for group in value["groups"]]
        page.locator("#stack-all").click()
        for place, group in enumerate(value["groups"]):
            frames = page.locator("#stack-list > details").nth(place).locator("ol code")
            assert len(frames.all_inner_texts()) == len(group["frames"])
        frames = page.locator("#verdict .blocker > .frames code")
        assert frames.all_inner_texts() == finding["blocker"]["frames"][:14]
        assert (
            page.locator("#flame-details")
            .inner_text()
            .startswith(
                f"all threads: {value['threads']['waiting'] + value['threads']['running']} threads"
            )
        )


def test_flame_graph_zooms_searches_and_inverts(
    stalled: Path, tmp_path: Path, opened: Opener
) -> None:
    with opened(report(tmp_path, stalled)) as page:
        before = boxes(page)
        narrow = "dict_update_statistics"
        assert 0 < before[narrow] < before["all threads"] / 10
        page.locator(f"#flame-chart g.frame[name={narrow}]").click()
        page.wait_for_selector(f"#flame-chart g.frame.focused[name={narrow}]")
        zoomed = boxes(page)
        assert zoomed[narrow] == before["all threads"]
        assert "__lll_lock_wait" not in zoomed
        page.locator("#flame-reset").click()
        # The chart draws the new widths in the next frame, or a later one.
        page.wait_for_function(
            "([name, width]) => Math.round(document.querySelector("
            "`#flame-chart g.frame[name=${name}]`).getBoundingClientRect().width) === width",
            arg=[narrow, before[narrow]],
        )
        assert boxes(page) == before

        page.locator("#flame-search").fill("MUTEX")
        says(page, "#flame-found", "1 box, 20 threads (95.2 %)")
        fill = "g => getComputedStyle(g.querySelector('path')).fill"
        mutex = page.locator("#flame-chart g.frame[name=pthread_mutex_lock]")
        other = page.locator("#flame-chart g.frame[name='all threads']")
        assert mutex.evaluate(fill) == "rgb(247, 210, 30)" != other.evaluate(fill)
        page.locator("#flame-search").fill("")
        says(page, "#flame-found", "")
        assert mutex.evaluate(fill) != "rgb(247, 210, 30)"

        top = "g => g.getBoundingClientRect().top"
        leaf = "#flame-chart g.frame[name=__lll_lock_wait]"
        assert page.locator(leaf).evaluate(top) > mutex.evaluate(top)
        page.locator("#flame-inverted").check()
        assert page.locator(leaf).evaluate(top) < page.locator(
            "#flame-chart g.frame[name=pthread_mutex_lock]"
        ).evaluate(top)
        page.locator("#flame-idle").check()
        assert "poll" in boxes(page)


def column(page: Page, place: int) -> list[str]:
    return texts(page, f"#thread-table tbody tr td:nth-child({place} of :not([hidden]))")


def test_threads_filter_and_sort(stalled: Path, tmp_path: Path, opened: Opener) -> None:
    with opened(report(tmp_path, stalled)) as page:
        assert texts(page, "#thread-count") == ["21 of 26 threads"]
        assert len(column(page, 1)) == 21
        page.locator("#thread-states input[value=idle]").check()
        assert len(column(page, 1)) == 26
        head = page.locator("th[data-key=tid] button")
        head.click()
        assert column(page, 1) == [str(tid) for tid in (*range(100, 121), *range(2000, 2005))]
        head.click()
        assert column(page, 1)[0] == "2004"
        assert page.locator("th[data-key=tid]").get_attribute("aria-sort") == "descending"
        search = page.locator("#thread-search")
        search.fill("dict_update")  # a function of its stack alone
        says(page, "#thread-count", "1 of 26 threads")
        assert column(page, 1) == ["100"]
        search.fill("LOCK_open 105")
        says(page, "#thread-table tbody td >> nth=0", "105")
        assert column(page, 1) == ["105"]
        row = page.locator("#thread-table tbody tr").inner_text()
        assert "SELECT c FROM sbtest1 WHERE id = ?" in row
        assert "app, shop" in row


def test_short_words_of_the_table_are_not_broken(
    stalled: Path, tmp_path: Path, opened: Opener
) -> None:
    with opened(report(tmp_path, stalled), width=1000) as page:
        page.locator("#thread-search").scroll_into_view_if_needed()
        broken = page.eval_on_selector_all(
            "#thread-table tbody td:not(.code)",
            """cells => cells.filter(cell => {
                const text = document.createRange();
                text.selectNodeContents(cell);
                return /^\\S{1,12}$/.test(cell.textContent) && text.getClientRects().length > 1;
            }).map(cell => cell.textContent)""",
        )
        assert broken == []


def test_stacks_filter(stalled: Path, tmp_path: Path, opened: Opener) -> None:
    with opened(report(tmp_path, stalled)) as page:
        page.locator("#stack-search").fill("vio_io")
        says(page, "#stack-count", "5 threads in 1 stack")
        page.locator("#stack-list summary").focus()
        page.keyboard.press("Enter")
        page.locator("#stack-list ol code", has_text="my_net_read").wait_for()


def test_keyboard_reaches_everything(stalled: Path, tmp_path: Path, opened: Opener) -> None:
    with opened(report(tmp_path, stalled)) as page:
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to the verdict"
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "verdict"
        nameless = page.eval_on_selector_all(
            "button, input, select, a, summary, [tabindex='0']",
            """all => all.filter(e => !(e.textContent.trim() || e.getAttribute('aria-label')
                || (e.labels && e.labels.length))).map(e => e.outerHTML)""",
        )
        assert nameless == []
        outline = page.locator("#theme")
        outline.focus()
        page.keyboard.press("Enter")
        assert page.locator("html").get_attribute("data-theme") == "light"
        page.keyboard.press("Enter")
        assert page.locator("html").get_attribute("data-theme") == "dark"
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(15, 18, 23)"


def outside_their_boxes(page: Page) -> list[str]:
    """Return the texts of the wait graph that are wider than the box they are in."""
    found: list[str] = page.eval_on_selector_all(
        "#drawing .node",
        """nodes => nodes.flatMap(node => {
            const box = node.querySelector("rect:not(.behind)").getBBox();
            const right = text => text.getBBox().x + text.getBBox().width;
            const texts = [...node.querySelectorAll("text")];
            return texts.filter(text => right(text) > box.width).map(text => text.textContent);
        })""",
    )
    return found


@pytest.mark.parametrize("name", PAYLOADS)
def test_hostile_names_are_text(name: str, tmp_path: Path, opened: Opener) -> None:
    text = PAYLOADS[name]
    page_path = tmp_path / "hostile.html"
    page_path.write_bytes(rendered(hostile(text), text))
    assert page_path.stat().st_size < 2_000_000
    with opened(page_path) as page:
        page.locator("#stack-all").click()
        page.locator("#thread-states input[value=idle]").check()
        for details in page.locator("details:not([open]) > summary").all():
            if details.is_visible():
                details.click()
        page.locator("#flame-idle").check()
        page.locator("#flame-chart g.frame").nth(3).hover()
        assert page.evaluate("typeof owned") == "undefined"
        assert page.locator("script").count() == 2
        assert page.locator("style").count() == 1
        assert page.locator("img, iframe, object, embed, link, form").count() == 0
        assert page.locator("[onerror], [onload], [onfocus]").count() == 0
        assert page.locator("#drawing .node text").count()
        assert outside_their_boxes(page) == []
        query = page.locator("#verdict .query code").first.inner_text()
        if name in ("steering", "surrogate"):
            assert re.fullmatch(r"[ -~]+", query), "nothing in it steers"
            assert "\\u202e" in query or "\\udc80" in query
        elif name == "long":
            assert query.endswith("A… (1000000 characters)")
        else:
            assert query == " ".join(text.split())
        assert page.locator("#verdict").is_visible()


def test_hostile_incident_is_text(tmp_path: Path, opened: Opener) -> None:
    text = PAYLOADS["end of script"] + PAYLOADS["handler"]
    folder = store_incident(tmp_path / "store", [hostile(text), busy()], why=text)
    with opened(report(tmp_path, folder)) as page:
        assert page.evaluate("typeof owned") == "undefined"
        assert text in page.locator(".fired").inner_text()


def test_the_policy_lets_nothing_else_run(stalled: Path, tmp_path: Path, browser: Browser) -> None:
    """A script and a handler that somebody wrote into the file do not run."""
    page_path = report(tmp_path, stalled)
    html = page_path.read_text("utf-8")
    evil = "<script>owned=1</script><img src=x onerror='owned=1'><p id=tall style='height:9px'></p>"
    page_path.write_text(html.replace("<main>", f"<main>{evil}", 1), "utf-8")
    from tests.support.browser import new_page

    page = new_page(browser)
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.goto(page_path.as_uri())
    page.wait_for_selector("html[data-ready=yes]")
    assert page.evaluate("typeof owned") == "undefined"
    assert page.locator("#tall").evaluate("p => p.style.height") == ""
    assert any("Content Security Policy" in text for text in said)
    # And of what the page's own script were to take for markup, nothing would become an element.
    with pytest.raises(Exception, match="TrustedHTML"):
        page.evaluate("document.body.innerHTML = '<img src=x>'")
    page.close()


@pytest.fixture
def incident(tmp_path: Path) -> Path:
    quiet = Capture(backend="bpf", processes=busy().processes, threads=busy().threads[-5:])
    captures = [
        busy(20, time_ns=START_NS),
        busy(35, time_ns=START_NS + 5 * 10**9),
        msgspec.structs.replace(quiet, time_ns=START_NS + 25 * 10**9),
    ]
    return store_incident(tmp_path / "store", captures)


def test_incident_timeline_chooses_captures(incident: Path, tmp_path: Path, opened: Opener) -> None:
    with opened(report(tmp_path, incident)) as page:
        assert "Threads_running is 187, over 40" in page.locator(".fired").inner_text()
        assert number(page, "waiting") == "36"  # the surest verdict of the three
        plots = texts(page, ".plot figcaption")
        titles = {
            "threads running (Threads_running); threshold 40",
            "CPU, cores (process.cpu_share)",
        }
        assert titles <= set(plots)
        page.locator("[data-mark='0']").click()
        assert number(page, "waiting") == "21"
        assert page.locator("#verdict > article").count() == 1
        page.keyboard.press("ArrowRight")
        assert number(page, "waiting") == "36"
        page.locator("#pick").select_option("2")
        assert page.locator("#verdict .pill").inner_text() == "No stall"
        assert page.locator("#drawing").inner_text().startswith("No thread waits")
        assert page.locator("#next").is_disabled()
        page.locator("#previous").click()
        assert page.locator("[data-mark='1']").get_attribute("aria-current") == "true"
        page.locator("[data-show='0']").click()
        assert number(page, "waiting") == "21"
        page.locator("#add-series").fill("Questions/s")
        page.keyboard.press("Enter")
        says(page, ".plot >> nth=-1 >> figcaption", "Questions/s")
        # Every article is still there once.
        assert page.locator("article.capture").count() == 3


def test_incident_histograms(incident: Path, tmp_path: Path, opened: Opener) -> None:
    with opened(report(tmp_path, incident)) as page:
        captions = texts(page, "#waits figcaption")
        assert captions[0].startswith(
            "mutex 93 waits, 1.24 s in total, longest 812 ms; 3 above 10 ms"
        )
        assert captions[1].startswith("fsync 7 waits")
        bars = page.locator("#waits figure").first.locator("rect")
        assert bars.count() == 3
        assert page.locator("#waits figure").first.locator("rect.slow").count() == 1
        assert "LOCK_open" in page.locator("#keys").inner_text()


def test_comparison_shows_the_difference(
    stalled: Path, tmp_path: Path, opened: Opener, capsys: pytest.CaptureFixture[str]
) -> None:
    calm = saved(busy(4), tmp_path / "calm.jsonl.zst")
    page_path = report(tmp_path, calm, stalled, "--compare")
    capsys.readouterr()
    assert main(["diff", "--json", str(calm), str(stalled)]) == Exit.PARTIAL
    value = json.loads(capsys.readouterr().out)
    with opened(page_path) as page:
        assert number(page, "waiting") == "21"
        rows = page.locator("#changes tbody tr")
        assert float(rows.nth(0).locator("td").nth(2).inner_text()) == value["before"]["active"]
        assert float(rows.nth(1).locator("td").nth(2).inner_text()) == value["after"]["active"]
        deltas = texts(page, "#changes .delta")
        assert deltas == [f"{c['before']:g} → {c['after']:g}" for c in value["more"]]
        page.locator("#flame-chart g.frame[name=__lll_lock_wait]").hover()
        said = "__lll_lock_wait: 4 before, 20 threads after: 16 more"
        assert page.locator("#flame-details").inner_text().startswith(said)
        page.locator("#flame-difference").uncheck()
        page.locator("#flame-chart g.frame[name=__lll_lock_wait]").hover()
        assert "16 more" not in page.locator("#flame-details").inner_text()


def test_readable_without_its_script(incident: Path, tmp_path: Path, opened: Opener) -> None:
    with opened(report(tmp_path, incident), script=False) as page:
        assert "35 of" in page.locator("#verdict .headline").inner_text()
        assert "open_table" in page.locator("#verdict .blocker").inner_text()
        assert "LOCK_open" in page.locator("#graph").inner_text()
        assert len(texts(page, "#thread-table tbody tr")) == 41
        assert page.locator("#flame-chart").is_hidden()
        page.locator("#capture-0 summary").first.click()
        assert "20 of" in page.locator("#capture-0").inner_text()


def test_fits_every_width(incident: Path, tmp_path: Path, opened: Opener) -> None:
    with opened(report(tmp_path, incident), width=320) as page:
        for width in (320, 480, 820, 1280, 1920):
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert page.locator("#verdict .headline").bounding_box()["y"] < 900
        for width in (900, 1000):  # no word of the menu is cut
            page.set_viewport_size({"width": width, "height": 900})
            wide = "e => [e.scrollWidth, e.clientWidth]"
            needed, there = page.eval_on_selector(".top nav", wide)
            assert needed == there


@pytest.mark.needs("pdftotext")
def test_on_paper_it_is_four_pages(incident: Path, tmp_path: Path, opened: Opener) -> None:
    with opened(report(tmp_path, incident), scheme="dark") as page:
        page.pdf(path=tmp_path / "report.pdf", format="A4")
        assert page.locator("html").get_attribute("data-theme") is None
        assert page.locator("#stack-list > details[open]").count() == 0
    done = subprocess.run(
        ["pdftotext", "-layout", tmp_path / "report.pdf", "-"], capture_output=True, check=True
    )
    text = done.stdout.decode()
    for wanted in ("35 of 41 threads", "dict_update_statistics", "backend: bpf", "What to do",
                   "Who waits for whom", "SELECT c FROM sbtest1",
                   "What the numbers mean"):  # fmt: skip
        assert wanted in text, wanted
    assert text.count("\f") <= 4


@pytest.fixture
def page_of_a_row_lock(tmp_path: Path) -> Path:
    return report(tmp_path, saved(locked(), tmp_path / "row.jsonl.zst"))


def test_a_phone_shows_the_statement_first(page_of_a_row_lock: Path, opened: Opener) -> None:
    with opened(page_of_a_row_lock, width=390) as page:
        page.set_viewport_size({"width": 390, "height": 844})
        statement = page.locator(".ending code")
        assert statement.inner_text() == "KILL 900;"
        box = statement.bounding_box()
        assert box["y"] + box["height"] < 844
        who = "connection 900, root@10.0.0.7, shop, idle in transaction 246 s"
        assert who in page.locator(".holder-of-all").inner_text()


def test_a_statement_is_copied(page_of_a_row_lock: Path, opened: Opener) -> None:
    with opened(page_of_a_row_lock) as page:
        page.evaluate(
            "Object.defineProperty(navigator, 'clipboard',"
            " {value: {writeText: async (text) => { window.copied = text; }}})"
        )
        page.locator(".ending .copy").click()
        says(page, ".ending .copy", "Copied")
        assert page.evaluate("window.copied") == "KILL 900;"
        page.locator(".as-text summary").click()
        page.locator(".as-text .copy").click()
        says(page, ".as-text .copy", "Copied")
        assert "KILL 900;" in page.evaluate("window.copied")
        # Without a clipboard, as in a page from a file, the text is selected.
        page.evaluate(
            "() => { navigator.clipboard.writeText = async () => { throw new Error('no'); }; }"
        )
        says(page, ".ending .copy", "Copy")
        page.locator(".ending .copy").click()
        assert page.evaluate("String(getSelection())").strip() == "KILL 900;"


def test_a_box_of_the_graph_filters_and_the_address_keeps_it(
    page_of_a_row_lock: Path, opened: Opener
) -> None:
    with opened(page_of_a_row_lock) as page:
        boxes = page.locator(".node[role=button]")
        assert boxes.count() == 2
        assert "connection 900" in (boxes.first.text_content() or "")
        boxes.nth(1).click()
        says(page, "#thread-count", "20 of 21 threads")
        boxes.first.focus()
        page.keyboard.press("Enter")
        says(page, "#thread-count", "1 of 21 threads")
        assert "threads=900" in page.url
        page.reload()
        page.wait_for_selector("html[data-ready]")
        says(page, "#thread-count", "1 of 21 threads")
        page.locator("#thread-chosen button").click()
        says(page, "#thread-count", "20 of 21 threads")
        assert "threads=" not in page.url
