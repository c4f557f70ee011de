# SPDX-License-Identifier: Apache-2.0
"""Run the tests that are marked ``kernels`` on other kernels, and keep what they found.

A line of JSON for each guest goes to build/kernels.json; docs/support-matrix.json has what the
documentation shows, and docs/support-matrix.md is made from it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from tests.support.cache import Unavailable
from tests.support.vm import guest, kernels

__all__ = ["DEFAULT", "GROUPS", "Guest", "Outcome", "render", "run", "update"]

CHECKOUT = Path(__file__).resolve().parents[3]
PYCACHE = CHECKOUT / "build" / "pycache"
RECORD = CHECKOUT / "docs" / "support-matrix.json"
PAGE = CHECKOUT / "docs" / "support-matrix.md"
SECONDS = 1500.0
"""For one guest."""

DEFAULT = (
    "5.10",
    "6.1",
    "6.12",
    "newest",
    "6.12:confidentiality",
    "6.12:integrity",
    "6.12:preempt",
    "6.12:nohz",
    "6.12:cpus8",
    "6.12:possible64",
    "6.12:nobtf",
    "6.12:yama1",
    "6.12:yama2",
    "6.12:yama3",
)
"""SERIES or SERIES:VARIANT."""

GROUPS = {
    "bpf": "captures by `bpf`: known frames, verified",
    "proc": "captures by `proc`",
    "ptrace": "captures by `ptrace`",
    "owners": "lock owners",
    "waits": "`waits`: counts exact, in flight, both ends",
    "poll": "`waits` by polling",
    "serve": "`serve`, captures at a threshold",
    "inproc": "in-process library",
    "held": "mmap_lock of the target held: captures in time",
    "disks": "a disk of the target does not answer: commands end",
    "killed": "probe killed by SIGKILL",
    "server": "metadata lock of a real MariaDB named",
    "doctor": "`doctor` is true",
}
"""What the documentation calls the groups of tests."""

NEEDED = {
    "bpf": ("root", "bpf", "waits", "uprobes", "perf", "ptrace", "library", "mariadb", "nfs"),
    "none": ("root", "probe", "library", "mariadb", "nfs"),
}
WITHOUT_BPF = {"confidentiality", "nobtf", "yama3"}

PYTEST = (
    *(".venv/bin/python", "-m", "pytest", "-p", "no:cacheprovider"),
    *("-p", "no:hypothesispytest", "-p", "no:xdist", "-p", "tests.kernels.recorder"),
    *("-m", "kernels"),
)
IMPORT_ALL = """\
import importlib, pkgutil, stallscope
for module in pkgutil.walk_packages(stallscope.__path__, "stallscope."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
"""

BEGIN, END = "<!-- kernels: made by ./scripts/test --kernels --update -->", "<!-- /kernels -->"


class Outcome(msgspec.Struct):
    """One test in one guest."""

    test: str
    groups: list[str]
    outcome: str
    reason: str = ""
    seconds: float = 0.0


class Guest(msgspec.Struct):
    """What one boot of a kernel has shown."""

    series: str
    variant: str
    release: str
    groups: dict[str, str]
    """Of each group: ``yes``, ``no: REASON`` or ``failed``."""


def marked_files() -> list[str]:
    """Return the test files that have tests for the matrix, as paths within the checkout."""
    found = []
    for folder in ("root", "live", "kernels"):
        for path in sorted((CHECKOUT / "tests" / folder).glob("test_*.py")):
            if "mark.kernels(" in path.read_text():
                found.append(str(path.relative_to(CHECKOUT)))
    return found


def summarize(outcomes: Iterable[Outcome]) -> dict[str, str]:
    """Return of each group what its tests came to."""
    groups: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        for group in outcome.groups:
            groups.setdefault(group, []).append(outcome)
    answer = {}
    for name in (name for name in GROUPS if name in groups):
        found = groups[name]
        if any(one.outcome == "failed" for one in found):
            answer[name] = "failed"
        elif any(one.outcome == "passed" for one in found):
            answer[name] = "yes"
        else:
            answer[name] = f"no: {found[0].reason}"
    return answer


def command(series: str, variant: str, expression: str | None) -> list[str]:
    """Return what the guest runs."""
    works = series != "5.10" and variant not in WITHOUT_BPF
    needed = ",".join(NEEDED["bpf" if works else "none"])
    argv = ["env", "PYTHONDONTWRITEBYTECODE=1", f"PYTHONPYCACHEPREFIX={PYCACHE}"]
    argv += [f"STALLSCOPE_GUEST={variant}"]
    argv += [f"STALLSCOPE_REQUIRE={needed}", f"STALLSCOPE_RESULTS={guest.SHARED}/results"]
    argv += [*PYTEST, "-v", "--color=no", "--timeout=600", "--basetemp=/dev/shm/pytest"]
    if expression:
        argv += ["-k", expression]
    return [*argv, *marked_files()]


def compile_ahead() -> None:
    """Compile on this machine what guests import: they can only read what is compiled.

    Their emulated processors would compile all of it each time a command starts.
    """
    environment = {
        name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
    }
    environment |= {"PYTHONPYCACHEPREFIX": str(PYCACHE), "PYTHONPATH": str(CHECKOUT)}
    for argv in ([PYTEST[0], "-c", IMPORT_ALL], [*PYTEST, "-q", "--collect-only", *marked_files()]):
        subprocess.run(argv, cwd=CHECKOUT, env=environment, capture_output=True, check=True)


def read_results(path: Path) -> list[Outcome]:
    if not path.exists():
        return []
    return [msgspec.json.decode(line, type=Outcome) for line in path.read_bytes().splitlines()]


def run_one(name: str, expression: str | None) -> tuple[Guest, list[Outcome], str]:
    """Boot one kernel; return what it showed, each test, and why it did not come to its end."""
    series, _, variant = name.partition(":")
    kernel = kernels.find(series)
    booted = guest.VARIANTS[variant or "plain"]
    trouble = ""
    with tempfile.TemporaryDirectory(prefix="stallscope-guest-") as folder:
        shared = Path(folder)
        try:
            code, output = guest.boot(
                kernel, booted, command(series, booted.name, expression), shared, SECONDS
            )
            if code not in (0, 1):
                trouble = f"pytest ended with {code}:\n{output[-3000:]}"
        except guest.GuestError as error:
            trouble = str(error)
        outcomes = read_results(shared / "results")
    seen = Guest(series, booted.name, kernel.release, summarize(outcomes))
    return seen, outcomes, trouble


def run(
    names: Sequence[str], expression: str | None, say: Callable[[str], object]
) -> tuple[list[Guest], list[tuple[str, Outcome]], list[str]]:
    """Boot the kernels one after the other, with progress; return guests, tests, and troubles."""
    guests, tests, troubles = [], [], []
    compile_ahead()
    for name in names:
        start = time.monotonic()
        try:
            seen, outcomes, trouble = run_one(name, expression)
        except (Unavailable, KeyError) as error:
            troubles.append(f"{name}: {error}")
            say(f"{name}: not run: {error}")
            continue
        seconds = time.monotonic() - start
        guests.append(seen)
        tests += [(name, outcome) for outcome in outcomes]
        if trouble:
            troubles.append(f"{name}: {trouble}")
        say(f"{name}: {seen.release}, {len(outcomes)} tests in {seconds:.0f} s")
        for group, answer in seen.groups.items():
            say(f"  {group:8} {answer}")
        for outcome in outcomes:
            if outcome.outcome == "failed":
                say(f"  FAILED {outcome.test}\n{outcome.reason}")
    (CHECKOUT / "build" / "kernels.json").write_bytes(msgspec.json.encode(guests))
    return guests, tests, troubles


def known() -> list[Guest]:
    return msgspec.json.decode(RECORD.read_bytes(), type=list[Guest]) if RECORD.exists() else []


def short(answer: str) -> str:
    """Return a cell of the table."""
    if answer.startswith("no: "):
        return "no"
    return answer


def render(guests: Sequence[Guest]) -> str:
    """Return the tables of the page."""
    shown = [group for group in GROUPS if any(group in one.groups for one in guests)]
    lines = [f"| kernel | booted | {' | '.join(GROUPS[group] for group in shown)} |"]
    lines.append("| --- " * (len(shown) + 2) + "|")
    reasons: list[str] = []
    for one in guests:
        cells = [short(one.groups.get(group, "not run")) for group in shown]
        options = " ".join(guest.VARIANTS[one.variant].append) or one.variant
        lines.append(f"| {one.release} | {options} | {' | '.join(cells)} |")
        for group, answer in one.groups.items():
            if answer.startswith("no: "):
                reason = re.sub(r"^\S+: ", "", answer.removeprefix("no: "))
                text = f"- {one.release}, {options}, {group}: {reason}"
                if text not in reasons:
                    reasons.append(text)
    if reasons:
        lines += ["", "Why not, as the tests report it:", "", *reasons]
    return "\n".join(lines)


def page_with(table: str, page: str) -> str:
    """Return the page with its generated part replaced."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n{table}\n{END}{after}"


def update(guests: Sequence[Guest]) -> None:
    """Put what was run in place of what was recorded of the same kernels, and make the page.

    Groups that were not run, of a kernel of the same release, stay as they were recorded.
    """
    order = [tuple((*name.split(":"), "plain")[:2]) for name in DEFAULT]
    merged = {(one.series, one.variant): one for one in known()}
    for one in guests:
        before = merged.get((one.series, one.variant))
        if before is not None and before.release == one.release:
            one = msgspec.structs.replace(one, groups=before.groups | one.groups)
        merged[one.series, one.variant] = one
    kept = [merged[key] for key in order if key in merged]
    RECORD.write_bytes(msgspec.json.format(msgspec.json.encode(kept), indent=1) + b"\n")
    PAGE.write_text(page_with(render(kept), PAGE.read_text()))


def main() -> int:
    """Return whether the kernels that are named can be booted here; 1 and the reason where not."""
    reason = guest.missing()
    try:
        for series in sys.argv[1:]:
            kernels.find(series)
    except Unavailable as error:
        reason = reason or str(error)
    if reason:
        print(reason)
    return 1 if reason else 0


if __name__ == "__main__":
    sys.exit(main())
