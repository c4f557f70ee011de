# SPDX-License-Identifier: Apache-2.0
"""docs/experiments.md and its pictures, written from results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.bench import barchart, linechart
from tests.bench.experiments.model import Drawing, Experiment, Result, Verdict
from tests.bench.stats import BenchError, render

__all__ = ["PAGE", "PICTURES", "picture", "render_page", "write_page"]

CHECKOUT = Path(__file__).resolve().parents[3]
PAGE = CHECKOUT / "docs" / "experiments.md"
PICTURES = CHECKOUT / "docs" / "img"
COMMAND = "./scripts/bench experiments --only {}"
INTRODUCTION = (
    "This project comes from posts of 2009 to 2017: about servers that stall, about what a durable"
    " commit costs, and about bytes that are written twice. This page runs their experiments again"
    " on real servers: the number of the post beside ours, what stallscope says at that moment, and"
    " what the fix gains. All figures are of one virtual machine with {cpus} CPUs, Linux {kernel}."
    " The clients share the CPUs with the server."
)
READING = (
    "A figure is the median of some windows; the lowest and the highest are in brackets. **Shows"
    " it** says whether the effect is there, whatever the absolute numbers are: *yes*, *partly* or"
    " *no*. The section says why. **Verdict** is the signature that `stallscope snap` names during"
    " the experiment, or the command whose output is in the section. Where the load average is"
    " high, other programs ran beside the experiment: compare figures within such a section, and"
    " not with others. The results that this page was written from are in"
    " `tests/data/experiments.jsonl.zst`."
)
COMMANDS = """\
    ./scripts/setup --all
    ./scripts/bench experiments                    # all, {minutes} minutes
    ./scripts/bench experiments --only acid        # one; --quick shows only that it works
    ./scripts/bench experiments --page             # writes build/experiments into this page
"""
TABLE = (
    "| experiment | the seed | here | shows it | verdict | fix | after the fix |\n"
    "| --- | --- | --- | --- | --- | --- | --- |"
)
NO_VERDICT = "none"


def write_page(
    experiments: Sequence[Experiment], results: Mapping[str, Result], page: Path, pictures: Path
) -> None:
    """Write the page, and a picture for each drawing."""
    for result in results.values():
        if result.quick:
            raise BenchError(f"{result.experiment} was run with --quick: it shows no effect")
        for drawing in result.found.drawings:
            file = pictures / picture(drawing)
            file.write_text(draw(drawing))
    page.write_text(render_page(experiments, results))


def picture(drawing: Drawing) -> str:
    """Return the name of its file."""
    return f"experiment-{drawing.name}.svg"


def draw(drawing: Drawing) -> str:
    """Return the SVG."""
    if drawing.lines is not None:
        return linechart.draw(drawing.lines)
    assert drawing.bars is not None
    return barchart.draw(drawing.bars)


def render_page(experiments: Sequence[Experiment], results: Mapping[str, Result]) -> str:
    """Return the page."""
    one = results[experiments[0].name]
    seconds = sum(result.seconds for result in results.values())
    lines = [
        "# The seeds' experiments, run again",
        INTRODUCTION.format(cpus=one.cpus, kernel=one.kernel.split("-")[0]),
        COMMANDS.format(minutes=round(seconds / 60)).rstrip("\n"),
        READING,
        TABLE,
    ]
    lines = "\n\n".join(lines).split("\n")
    lines += [_row(item, results[item.name]) for item in experiments]
    for item in experiments:
        lines += ["", *_section(item, results[item.name])]
    return "\n".join(lines) + "\n"


def _row(item: Experiment, result: Result) -> str:
    found = result.found
    cells = [
        f"[{item.title}](#{anchor(item.title)})",
        item.seed.number,
        found.ours,
        found.shows,
        ", ".join(filter(None, (_name(verdict) for verdict in found.verdicts))) or NO_VERDICT,
        item.fix,
        found.after,
    ]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def anchor(title: str) -> str:
    """Return the part of an address behind # that a heading has."""
    kept = "".join(c for c in title.lower() if c.isalnum() or c in " -_")
    return kept.replace(" ", "-")


def _name(verdict: Verdict) -> str:
    """Return what is short enough for the first table."""
    if verdict.missing:
        return ""
    if not verdict.command.startswith("stallscope snap"):
        return f"`{verdict.command.partition(' -')[0]}`"
    for line in verdict.says:
        start, end = line.rfind("["), line.rfind("]")
        if 0 <= start < end:
            return f"`{line[start + 1 : end]}`"
    return "no stall" if any("no stall" in line.lower() for line in verdict.says) else ""


def _section(item: Experiment, result: Result) -> Iterator[str]:
    found = result.found
    yield f"## {item.title}"
    yield ""
    yield f"The seed ({item.seed.source}): **{item.seed.number}**. Here: **{found.ours}**."
    yield ""
    yield item.story
    yield ""
    measured = f"{result.date}, {result.seconds:.0f} s"
    if result.load is not None:
        measured += f", load average {result.load:.2f} before it"
    yield f"`{COMMAND.format(item.name)}`, {measured}."
    yield ""
    for drawing in found.drawings:
        yield f"![{drawing.text}](img/{picture(drawing)})"
        yield ""
    for table in found.tables:
        yield render(table).replace("### ", "**", 1).replace("\n", "**\n", 1).rstrip("\n")
        yield ""
    for verdict in found.verdicts:
        yield from _verdict(verdict)
    yield f"Fix: {item.fix}. After it: {found.after}."
    if found.why:
        yield ""
        yield found.why


def _verdict(verdict: Verdict) -> Iterator[str]:
    if verdict.missing:
        yield f"`{verdict.command}` says nothing here: {verdict.missing}"
        yield ""
        return
    yield f"What `{verdict.command}` says meanwhile:"
    yield ""
    yield "```text"
    yield from verdict.says
    yield "```"
    yield ""
