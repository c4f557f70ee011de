# SPDX-License-Identifier: Apache-2.0
"""docs/experiments.md is what its results say, and all experiments are on it."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest

from tests.bench import barchart
from tests.bench.__main__ import BENCHES, EPILOG
from tests.bench.barchart import Bar, Bars, Group
from tests.bench.experiments import EXPERIMENTS, Places, sections
from tests.bench.experiments.measures import better, factor, head, short, signature
from tests.bench.experiments.model import SCHEMA, Found, Result, Verdict
from tests.bench.experiments.page import PAGE, PICTURES, anchor, draw, picture, render_page
from tests.bench.experiments.run import KEPT, read
from tests.bench.stats import BenchError
from tests.needs import NEEDS

__all__: list[str] = []

NAMES = [experiment.name for experiment in EXPERIMENTS]
SHOWS = {"yes", "partly", "no"}
SVG = "{http://www.w3.org/2000/svg}"


def kept() -> dict[str, Result]:
    return {name: read(KEPT / f"{name}.json") for name in NAMES}


def test_the_page_is_what_the_results_say() -> None:
    assert PAGE.read_text() == render_page(EXPERIMENTS, kept())


def test_no_result_of_the_page_is_from_a_quick_run() -> None:
    for name, result in kept().items():
        assert (result.experiment, result.quick) == (name, False)
        assert result.found.shows in SHOWS


def test_each_experiment_has_a_row_and_a_section_with_its_command() -> None:
    text = PAGE.read_text()
    rows = [line for line in text.splitlines() if line.startswith("| [")]
    assert len(rows) == len(EXPERIMENTS)
    parts = text.split("\n## ")[1:]
    for experiment, row, part in zip(EXPERIMENTS, rows, parts, strict=True):
        assert row.startswith(f"| [{experiment.title}](#{anchor(experiment.title)}) |")
        assert experiment.seed.number in row
        assert part.startswith(f"{experiment.title}\n")
        assert f"`./scripts/bench experiments --only {experiment.name}`" in part
        assert experiment.seed.source in part


def test_the_commands_of_the_page_exist() -> None:
    used = re.findall(r"\./scripts/bench (\S+)(?: --only ([a-z-]+))?", PAGE.read_text())
    assert used
    for bench, name in used:
        assert bench in BENCHES
        assert not name or name in NAMES


def test_the_help_names_all_experiments() -> None:
    assert [name for name in NAMES if name not in EPILOG] == []


def test_each_picture_is_of_its_result() -> None:
    drawings = [drawing for result in kept().values() for drawing in result.found.drawings]
    for drawing in drawings:
        assert (PICTURES / picture(drawing)).read_text() == draw(drawing)
        assert f"(img/{picture(drawing)})" in PAGE.read_text()
    drawn = {path.name for path in PICTURES.glob("experiment-*.svg")}
    assert drawn == {picture(drawing) for drawing in drawings}


def test_needs_are_known() -> None:
    for experiment in EXPERIMENTS:
        assert set(experiment.needs) <= NEEDS.keys(), experiment.name


def test_a_page_of_quick_results_is_refused(tmp_path: Path) -> None:
    for name in NAMES:
        shutil.copy(KEPT / f"{name}.json", tmp_path)
    quick = msgspec.structs.replace(read(tmp_path / f"{NAMES[0]}.json"), quick=True)
    (tmp_path / f"{NAMES[0]}.json").write_bytes(msgspec.json.encode(quick))
    with pytest.raises(BenchError, match=f"{NAMES[0]} was run with --quick"):
        list(sections("mariadb", False, (), Places(tmp_path, page=True)))


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match=r"acid\.json.*run \./scripts/bench.*--only acid"):
        read(tmp_path / "acid.json")
    with pytest.raises(BenchError, match="no experiment nothing: there are one-row-update"):
        list(sections("mariadb", False, ("nothing",), Places(tmp_path)))
    other = Result("another/9", "acid", "", "", 2, 1.0, 0.0, False, Found("", "", "no", (), ()))
    (tmp_path / "acid.json").write_bytes(msgspec.json.encode(other))
    with pytest.raises(BenchError, match=f"is of another/9, not {SCHEMA}"):
        read(tmp_path / "acid.json")


def test_bars_are_as_long_as_their_values() -> None:
    groups = [
        Group("first", [Bar("before", 10, 8, 12), Bar("after", 40, 40, 40)]),
        Group("second", [Bar("before", 0, 0, 0)]),
    ]
    drawn = ElementTree.fromstring(barchart.draw(Bars("a <title>", "rows/s", groups)))
    bars = [
        float(rect.attrib["width"])
        for rect in drawn.iter(f"{SVG}rect")
        if rect.attrib.get("height") == str(barchart.BAR)
    ]
    assert bars[1] == pytest.approx(4 * bars[0], abs=0.2)
    assert bars[2] == 1
    texts = [text.text for text in drawn.iter(f"{SVG}text")]
    assert {"a <title>", "first", "second", "before", "after", "10", "40"} <= set(texts)
    assert len([line for line in drawn.iter(f"{SVG}line") if line.get("class") == "spread"]) == 1


def test_each_step_of_a_logarithmic_axis_is_as_wide() -> None:
    groups = [Group(str(value), [Bar("x", value, value, value)]) for value in (1, 10, 100, 1000)]
    drawn = ElementTree.fromstring(barchart.draw(Bars("t", "u", groups, log=True)))
    widths = [
        float(rect.attrib["width"])
        for rect in drawn.iter(f"{SVG}rect")
        if rect.attrib.get("height") == str(barchart.BAR)
    ]
    assert widths[0] == 1
    assert widths[3] - widths[2] == pytest.approx(widths[2] - widths[1], abs=0.2)


def test_numbers_for_sentences() -> None:
    assert [short(value) for value in (14_321.4, 999.6, 26.58, 0.1234)] == [
        "14,300",
        "1,000",
        "26.6",
        "0.123",
    ]
    assert [better(after, 100) for after in (110, 90, 250)] == ["+10 %", "-10 %", "2.5 times"]
    with pytest.raises(BenchError):
        factor(1, 0)


def test_the_first_lines_of_snap() -> None:
    text = (
        "mysqld 5.5.9 (pid 16859): a stall for at least 186 ms: 188 of 208 threads wait.\n"
        "InnoDB's deadlock check holds a global lock: index PRIMARY of rows_.t1\n"
        "[innodb-deadlock-check]\n"
        "Who: connection 84\n"
    )
    assert signature(text) == "innodb-deadlock-check"
    assert head(text) == [
        "mysqld 5.5.9: a stall for at least 186 ms: 188 of 208 threads wait.",
        "InnoDB's deadlock check holds a global lock: index PRIMARY of rows_.t1",
        "[innodb-deadlock-check]",
    ]
    assert signature("mysqld: no stall found; 6 threads.\n") == "no stall"


def test_a_verdict_that_is_missing_says_why() -> None:
    verdict = Verdict("stallscope poke", (), missing="not root")
    assert msgspec.json.decode(msgspec.json.encode(verdict), type=Verdict) == verdict
