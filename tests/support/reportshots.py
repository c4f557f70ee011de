# SPDX-License-Identifier: Apache-2.0
"""Take the pictures of the HTML report in docs/img from a real stall of a MySQL 5.5.9.

.venv/bin/python -m tests.support.reportshots
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.browser import chromium, quiet_page
from tests.support.servers import MySQL55
from tests.support.stalls import TABLE_STORM_OPTIONS, table_open_storm, template_of_tables

CHECKOUT = Path(__file__).resolve().parents[2]
STALLSCOPE = CHECKOUT / "scripts" / "stallscope"
IMAGES = CHECKOUT / "docs" / "img"
DURING = 5
ATTEMPTS = 5
SHOTS = (
    # name, width, height, colours
    ("report-light", 1280, 1360, "light"),
    ("report-dark", 1280, 1360, "dark"),
    ("report-narrow", 390, 1360, "light"),
)
SECTIONS = ("timeline", "graph", "flame", "stacks", "threads")
SIZES = (("", 1280, 1700), ("-narrow", 390, 2400))
"""Each section on a desk and on a phone; so high that the menu, which stays, covers nothing."""


def stallscope(*words: str | Path) -> str:
    argv = [STALLSCOPE, *words]
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode not in (0, 3):
        raise SystemExit(f"stallscope {words[0]} ended with {done.returncode}")
    return done.stdout


def captures(folder: Path) -> list[Path]:
    """Capture a server before, during and after a stall."""
    folder.mkdir()
    made: list[Path] = []

    def snap(server: MySQL55) -> None:
        made.append(folder / f"{len(made) + 1}.jsonl.zst")
        stallscope("snap", "-p", str(server.pid), "-o", made[-1])

    with MySQL55(*TABLE_STORM_OPTIONS, template=template_of_tables()) as server:
        snap(server)
        with table_open_storm(server):
            for _ in range(DURING):
                snap(server)
        snap(server)
    return made


def pictures(page: Path, comparison: Path, out: Path) -> None:
    """Take them with Debian's Chromium."""
    out.mkdir(parents=True, exist_ok=True)
    with chromium() as browser:
        for name, width, height, scheme in SHOTS:
            with quiet_page(browser, page, width=width, height=height, scheme=scheme) as tab:
                tab.screenshot(path=out / f"{name}.png")
        for suffix, width, height in SIZES:
            with quiet_page(browser, page, width=width, height=height) as tab:
                for section in SECTIONS:
                    tab.locator(f"#{section}").screenshot(
                        path=out / f"report-{section}{suffix}.png"
                    )
                tab.locator("#flame-time").check()
                tab.locator("#flame").screenshot(path=out / f"report-flame-time{suffix}.png")
            with quiet_page(browser, comparison, width=width, height=1360) as tab:
                tab.screenshot(path=out / f"report-diff{suffix}.png")
        with quiet_page(browser, page) as tab:
            paper = page.with_suffix(".pdf")
            tab.pdf(path=paper, format="A4")
    subprocess.run(
        ["pdftoppm", "-png", "-r", "70", "-f", "1", "-l", "1", "-singlefile", paper,
         out / "report-paper"],
        check=True,
    )  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(prog="reportshots.py", description=__doc__)
    parser.add_argument("out", type=Path, nargs="?", default=IMAGES)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="stallscope-shots-") as name:
        page = Path(name, "report.html")
        for attempt in range(ATTEMPTS):
            files = captures(Path(name, str(attempt)))
            # The lock changes hands quickly: sometimes no capture shows its holder.
            if "blocked by" in stallscope("report", *files, "-o", page, "--force"):
                both = Path(name, "diff.html")
                stallscope("report", files[0], files[1], "--compare", "-o", both, "--force")
                pictures(page, both, options.out)
                return 0
    raise SystemExit(f"in none of {ATTEMPTS} stalls was a blocker found")


if __name__ == "__main__":
    sys.exit(main())
