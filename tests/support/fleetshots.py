# SPDX-License-Identifier: Apache-2.0
"""Take the pictures of a fleet's page in docs/img, of the simulated fleet, which they say.

.venv/bin/python -m tests.support.fleetshots
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from stallscope.fleet.engines.folder import FolderDestination
from tests.support.browser import chromium, quiet_page
from tests.support.fleet.simulated import Fleet

CHECKOUT = Path(__file__).resolve().parents[2]
STALLSCOPE = CHECKOUT / "scripts" / "stallscope"
IMAGES = CHECKOUT / "docs" / "img"
HOSTS, INCIDENTS, SEED = 300, 3000, 1
SHOTS = (
    # name, width, height, colours
    ("fleet-light", 1280, 1360, "light"),
    ("fleet-dark", 1280, 1360, "dark"),
    ("fleet-narrow", 390, 1360, "light"),
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="fleetshots.py", description=__doc__)
    parser.add_argument("out", type=Path, nargs="?", default=IMAGES)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="stallscope-shots-") as name:
        folder = Path(name, "fleet")
        folder.mkdir()
        made = Fleet(HOSTS, seed=SEED, until_ms=time.time_ns() // 10**6)
        destination = FolderDestination(folder, min_free=0)
        destination.send(made.stacks())
        for some in made.incidents(INCIDENTS):
            destination.send(some.batch)
        destination.send(made.agents())
        page = Path(name, "fleet.html")
        words = ["fleet", "report", "-o", str(page), "--from", f"file://{folder}"]
        done = subprocess.run([str(STALLSCOPE), *words], check=False)
        if done.returncode not in (0, 3):
            raise SystemExit(f"stallscope fleet report ended with {done.returncode}")
        with chromium() as browser:
            for shot, width, height, scheme in SHOTS:
                with quiet_page(browser, page, width=width, height=height, scheme=scheme) as tab:
                    tab.screenshot(path=options.out / f"{shot}.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
