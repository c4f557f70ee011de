# SPDX-License-Identifier: Apache-2.0
"""The page of a fleet: nothing that the engine says is markup, it loads nothing, it stays small,
and people with a keyboard, a phone or a screen reader can use it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from stallscope.base.errors import Exit, UsageError
from stallscope.fleet.questions.asking import QUESTIONS
from stallscope.fleet.questions.overview import step_of
from stallscope.main import main
from stallscope.reporters.html import assets
from stallscope.reporters.html.fleetpage import FleetAnswers, Links, Table, render
from tests.needs import AXE
from tests.support.fleet.questionscenes import HOUR, NOW, scene
from tests.unit.reportpages import Opener, texts
from tests.unit.reports import busy, store_incident

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.needs("web")]

PAYLOADS = (
    "</script><script>owned=1</script>",
    "<!--<script>owned=1//",
    "<img src=x onerror=owned=1>\"'><svg onload=owned=1>",
    '" autofocus onfocus="owned=1" x=\'',
    "</style><style>*{display:none}</style>",
    "{{ 7*7 }}{% raw %}${owned=1}",
    "\x1b]0;owned\x07\x00\u202egnp.exe\u2028\ufeff",
    "a\udc80b",
    "__proto__",
    "javascript:owned=1",
    "A" * 200_000,
)
SPAN = 24 * HOUR


def row(columns: tuple[str, ...], value: Any) -> dict[str, Any]:
    return dict.fromkeys(columns, value)


def answers(
    text: str = "x", *, hosts: int = 3, rows: int = 3, simulated: bool = False
) -> FleetAnswers:
    """Return answers with a text in all fields that can have one."""
    names = [f"{text[:300]}{number}" for number in range(hosts)]
    times = range(NOW - SPAN, NOW, HOUR)
    incident = {
        "uid": text, "id": text, "signature": text, "shape": text, "version": text,
        "blocker": text, "statement": text, "seconds": 3.5, "is_open": 0, "start_ms": NOW - HOUR,
    }  # fmt: skip
    tables = {}
    for name, question in QUESTIONS.items():
        if name != "hosts":
            value: dict[str, Any] = row(question.columns, text) | {"stalled_s": 4.5}
            value |= {"incidents": 7, "shapes": [text]} if name == "unknown" else {}
            tables[name] = Table(question.columns, [value] * rows)
    return FleetAnswers(
        text,
        NOW - SPAN,
        NOW,
        HOUR,
        {"incidents": 500, "hosts": 3000, "stalled": 70.5, "unended": 3,
         "simulated": 500 if simulated else 0},
        [{"host": name, "incidents": 9, "stalled": 30.0 / (at + 1)} for at, name in
         enumerate(names)],
        [{"host": name, "at_ms": at, "incidents": 1 + at // HOUR % 3, "stalled": at // HOUR % 40,
          "longest": text} for name in names for at in times],
        [{"at_ms": at, "incidents": 500, "stalled": 9000.0, "longest": text, "hosts": 400}
         for at in times],
        [{**incident, "host": text}] * 20,
        [{**incident, "host": name} for name in names for _ in range(20)],
        [{**incident, "host": text}] * 20,
        tables,
        (text,),
    )  # fmt: skip


def page(data: FleetAnswers, folder: Path, links: Links | None = None) -> Path:
    path = folder / "fleet.html"
    path.write_bytes(render(data, assets.load(), links or Links()))
    return path


@pytest.mark.large
@pytest.mark.needs("chromium")
@pytest.mark.parametrize("payload", PAYLOADS, ids=lambda text: ascii(text)[:24])
def test_hostile_texts_are_texts(payload: str, tmp_path: Path, opened: Opener) -> None:
    path = page(answers(payload), tmp_path, Links("http://{host}:1/incidents/{id}/report"))
    assert len(path.read_bytes()) < 1_500_000
    with opened(path) as tab:
        assert tab.evaluate("typeof owned") == "undefined"
        assert tab.locator("main > section").count() == 15
        assert tab.locator("script").count() == 2
        assert tab.locator("img").count() == 0
        hrefs = tab.eval_on_selector_all("a[href]", "all => all.map(a => a.href)")
        assert all(one.startswith(("file://", "http://")) for one in hrefs)
        steered = "\u202e" in tab.content()
        assert not steered


def test_the_page_has_no_address_and_loads_nothing(tmp_path: Path) -> None:
    text = page(answers("db"), tmp_path).read_text()
    body = text[: text.index('id="licences"')]
    assert re.findall(r"(?:src|srcset|action|data)=\"", body) == []
    assert set(re.findall(r"href=\"([^\"]{1})", body)) == {"#"}
    assert "://" not in re.sub(r"<style>.*?</style>", "", body, flags=re.S)
    assert "default-src &#39;none&#39;" in text


def test_the_page_of_thousands_of_hosts_is_small(tmp_path: Path) -> None:
    data = answers("host" * 15, hosts=40, rows=1000)
    assert len(page(data, tmp_path).read_bytes()) < 2_500_000


def test_other_hosts_are_one_row(tmp_path: Path) -> None:
    text = page(answers("db"), tmp_path).read_text()
    assert "2997 more hosts" in text
    assert "500 incidents" not in text, "those of the hosts above are not in the row of the others"


@pytest.mark.parametrize("simulated", [True, False])
def test_it_says_where_it_is_simulated(simulated: bool, tmp_path: Path) -> None:
    text = page(answers("db", simulated=simulated), tmp_path).read_text()
    assert ("All incidents here are simulated: no real server stalled." in text) == simulated


def test_an_empty_fleet_has_a_page(tmp_path: Path) -> None:
    tables = {name: Table(one.columns, []) for name, one in QUESTIONS.items()}
    empty: list[dict[str, Any]] = []
    data = FleetAnswers(
        "x", NOW - SPAN, NOW, HOUR, {}, empty, empty, empty, empty, empty, empty, tables
    )
    text = page(data, tmp_path).read_text()
    assert "No host stalls now" in text
    assert "No stall in this time." in text


@pytest.mark.parametrize(
    ("row", "wanted"),
    [
        ({"id": "i1", "host": "db1"}, "http://db1:1/incidents/i1/report"),
        ({"id": "i/../1", "host": "a/b?c#d"}, "http://a%2Fb%3Fc%23d:1/incidents/i%2F..%2F1/report"),
        ({"id": "..", "host": "db1"}, ""),
        ({"id": "", "host": "db1"}, ""),
        ({"id": "i1", "host": None}, ""),
        ({"id": "i1", "host": '"><x'}, "http://%22%3E%3Cx:1/incidents/i1/report"),
    ],
)
def test_links_are_quoted(row: dict[str, Any], wanted: str) -> None:
    assert Links("http://{host}:1/incidents/{id}/report").of(row) == wanted


@pytest.mark.parametrize(
    "template",
    ["javascript:{id}", "data:text/html,{id}", "//h/{id}", "http://h/", "{id} x", "\\\\h\\{id}",
     "http://{h}/{id}", "JavaScript:{id}", "\tjavascript:{id}"],
)  # fmt: skip
def test_templates_that_are_no_links_are_refused(template: str) -> None:
    with pytest.raises(UsageError, match="--reports takes"):
        Links(template)


def test_columns_are_few_and_round() -> None:
    for hours in (1, 3, 6, 24, 48, 100, 24 * 7, 24 * 30, 24 * 365, 24 * 4000):
        step = step_of(NOW - hours * HOUR, NOW)
        assert hours * HOUR / step <= 48
        assert hours * HOUR / step >= 4
        assert step % 60_000 == 0


@pytest.fixture
def drawn(tmp_path: Path) -> Path:
    """Return the page of a small fleet in a folder, by the command."""
    from stallscope.fleet.batch import make
    from stallscope.fleet.engines.folder import FolderDestination

    FolderDestination(tmp_path, min_free=0).send(make(scene(3, 300).rows))
    out = tmp_path / "fleet.html"
    code = main(
        ["fleet", "report", "-o", str(out), "--from", f"file://{tmp_path}",
         "--since", "2026-11-28T12:00:00+00:00", "--until", "2026-11-29T12:00:00+00:00"]
    )  # fmt: skip
    assert code == Exit.DONE
    return out


@pytest.mark.large
@pytest.mark.needs("chromium")
@pytest.mark.parametrize("width", [360, 1400])
def test_nothing_is_wider_than_the_page(drawn: Path, width: int, opened: Opener) -> None:
    with opened(drawn, width=width) as tab:
        assert tab.evaluate("document.documentElement.scrollWidth") == width


@pytest.mark.large
@pytest.mark.needs("chromium")
def test_a_cell_says_its_numbers_and_opens_its_incidents(drawn: Path, opened: Opener) -> None:
    with opened(drawn, width=1400) as tab:
        tab.emulate_media(reduced_motion="reduce")
        cells = tab.locator(".heat td a")
        assert cells.count() > 20
        stops = tab.eval_on_selector_all(".heat td a", "all => all.filter(a => !a.tabIndex).length")
        assert stops == 1, "one stop of the Tab key"
        first = cells.first
        first.focus()
        said = tab.locator("#tip").inner_text()
        assert re.search(r" to .* UTC\n\d+ incidents?, (stalled for|no known end)", said), said
        assert said.split("\n")[1] in first.locator(".away").text_content()
        tab.keyboard.press("ArrowRight")
        assert tab.evaluate("document.activeElement.closest('.heat') !== null")
        assert tab.locator("#tip").inner_text() != said
        tab.keyboard.press("Enter")
        tab.wait_for_selector("details.fleet-group[open] tr.chosen")
        opened_one = tab.locator("details.fleet-group[open]")
        assert opened_one.count() == 1
        assert opened_one.locator("tr.chosen").count() > 0
        host = opened_one.locator("summary code").inner_text()
        assert tab.url.endswith(f"#{opened_one.get_attribute('id')}")
        assert host in texts(tab, ".heat tbody th")


@pytest.mark.large
@pytest.mark.needs("chromium")
def test_it_can_be_read_without_its_script(drawn: Path, opened: Opener) -> None:
    with opened(drawn, script=False) as tab:
        assert tab.locator(".heat tbody tr").count() > 3
        assert "incident" in (tab.locator(".heat td a").first.get_attribute("title") or "")
        assert tab.locator("#theme").is_hidden()


@pytest.mark.large
@pytest.mark.needs("chromium", "axe")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(scheme: str, drawn: Path, browser: Browser) -> None:
    from tests.support.browser import READY, axe_finds_nothing

    context = browser.new_context(bypass_csp=True, color_scheme=scheme)  # type: ignore[arg-type]
    try:
        tab = context.new_page()
        tab.goto(drawn.as_uri())
        tab.wait_for_selector(READY)
        tab.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
        assert axe_finds_nothing(tab, AXE.read_text())
    finally:
        context.close()


@pytest.mark.large
def test_reports_of_a_store_are_beside_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    incident = store_incident(tmp_path / "store", [busy(20)])
    url, out = f"file://{tmp_path / 'fleet'}", tmp_path / "page.html"
    assert main(["fleet", "init", url]) == 0
    assert main(["fleet", "ship", "--dest", str(incident.parents[1]), "--to", url]) == 0
    words = ["fleet", "report", "-o", str(out), "--from", url, "--since", "2026-01-01"]
    # The store has no samples: the incident's report says so.
    assert main([*words, "--with-reports", str(incident.parents[1])]) == Exit.PARTIAL
    link = f'href="page-reports/{incident.name}.html"'
    assert link in out.read_text()
    assert b"<!doctype html>" in (tmp_path / f"page-reports/{incident.name}.html").read_bytes()
    capsys.readouterr()
    assert main([*words, "--force", "--reports", "r/{host}/{id}"]) == 0
    assert f'/{incident.name}"' in out.read_text()
    value = json.loads(re.search(r'id="data">(.*?)</script>', out.read_text(), re.S)[1])  # type: ignore[index]
    assert value["kind"] == "fleet"
