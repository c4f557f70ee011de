# SPDX-License-Identifier: Apache-2.0
"""The checkout's package, built for the systems of the tests as docs/install.md says.

``python builds.py 12 13`` makes images and packages, each once, into the cache.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import sys
import tempfile
from pathlib import Path

from tests.support.cache import Unavailable, cache_folder

from tests.support.vm import systems
from tests.support.vm.machine import Machine
from tests.support.vm.roots import MADE_OF, RELEASES, once, run
from tests.support.vm.systems import disk

__all__ = ["package", "payload"]

CHECKOUT = Path(__file__).resolve().parents[3]
SETTLE_SECONDS = 1800.0


def made_of() -> str:
    """Return what a package depends on: the commit is in it, and all that differs from it."""
    seen = hashlib.sha256()
    for words in (("rev-parse", "HEAD"), ("diff", "HEAD", "--", ".", ":!tests")):
        seen.update(run(["git", "-c", "safe.directory=*", "-C", CHECKOUT, *words]).encode())
    return seen.hexdigest()


def package(number: str) -> Path:
    """Build the package for a release, where the checkout has changed; return its file."""
    place = cache_folder() / "systems" / f"{number}-package"

    def make(part: Path) -> None:
        suite = RELEASES[number].suite
        run([CHECKOUT / "scripts/package", "deb", "--suite", suite, "--output", part])

    once(place, made_of(), make, f"building the package for Debian {number}")
    (found,) = place.glob("*.deb")
    return found


def payload(number: str, file: Path) -> None:
    """Make a disk of what a user carries to a host: the package."""
    built = package(number)
    root = file.with_suffix(".root")
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    shutil.copy(built, root)
    disk(root, file, built.stat().st_size * 5 // 4 + (32 << 20))
    shutil.rmtree(root)


def settle(number: str) -> None:
    """Boot an image once: what a system does at its first boot takes minutes here."""
    place = systems.folder(RELEASES[number])
    stamp = place / systems.BOOTED
    if stamp.exists():
        return
    print(f"setup: booting Debian {number} for the first time (some minutes)", flush=True)
    try:
        with (
            tempfile.TemporaryDirectory() as folder,
            Machine(systems.image(number, settled=False), Path(folder), keep=True) as machine,
        ):
            machine.run("systemctl is-system-running --wait", seconds=SETTLE_SECONDS)
            machine.check("mariadb -e 'DO 1'")
            machine.power_off()
    except BaseException:
        (place / MADE_OF).unlink()  # its file system may be in any state
        raise
    stamp.touch()


def main() -> int:
    parser = argparse.ArgumentParser(description="make images and builds for tests/systems")
    parser.add_argument(
        "releases",
        nargs="*",
        help=f"of {', '.join(RELEASES)} (default: STALLSCOPE_SYSTEMS, or all)",
    )
    for number in parser.parse_args().releases or systems.wanted():
        if number not in RELEASES:
            parser.error(f"no system {number}: {', '.join(RELEASES)}")
        systems.build(number)
        settle(number)
        package(number)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Unavailable as error:
        sys.exit(f"setup: {error}")
