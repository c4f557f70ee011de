# SPDX-License-Identifier: Apache-2.0
"""The checkout, built for the systems of the tests as docs/agent.md says it is to be built.

``python builds.py 12 13`` makes images and builds, each once, into the cache. A release has a root
folder of its own with the compilers: what a build needs of libraries is what its release has.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import sys
import tempfile
from pathlib import Path

from tests.support.servers.cache import Unavailable, cache_folder

from tests.support.vm import systems
from tests.support.vm.machine import Machine
from tests.support.vm.systems import ARCHIVE, RELEASES, debootstrap, disk, inside, once, run

__all__ = ["payload", "wheels"]

CHECKOUT = Path(__file__).resolve().parents[3]
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
NOT_IN_WHEELS = ("docs", "tests", "scripts")
KEPT = (".venv", "build")
SETTLE_SECONDS = 1800.0


def sources() -> list[Path]:
    """Return the files of the checkout, by their names in it: those that git has, or would have."""
    listed = run(["git", "-C", CHECKOUT, "ls-files", "-z", "-co", "--exclude-standard"])
    return [Path(name) for name in listed.split("\0") if name and (CHECKOUT / name).is_file()]


def made_of() -> str:
    """Return what the wheels depend on."""
    seen = hashlib.sha256()
    for name in sorted(sources()):
        if name.parts[0] not in NOT_IN_WHEELS or name.parts[:2] == ("docs", "commands"):
            seen.update(bytes(name) + b"\0" + (CHECKOUT / name).read_bytes())
    return seen.hexdigest()


def wheels(number: str) -> Path:
    """Build the checkout for a release, where it has changed; return the folder of its wheels."""
    release = RELEASES[number]
    place = cache_folder() / "systems" / f"{number}-build"
    once(
        place,
        release.suite,
        lambda part: debootstrap(release, part / "root"),
        f"making a root folder of Debian {number} to build in (100 MB from {ARCHIVE})",
    )
    root = place / "root"
    target = root / "root/stallscope"
    dist = target / "dist"
    stamp = root / "root/wheels-made-of"
    wanted = made_of()
    if stamp.exists() and stamp.read_text() == wanted and dist.is_dir():
        return dist
    print(f"setup: building for Debian {number} (600 MB from {ARCHIVE} the first time)", flush=True)
    target.mkdir(exist_ok=True)
    for old in target.iterdir():
        if old.name in KEPT:
            continue
        if old.is_dir() and not old.is_symlink():
            shutil.rmtree(old)
        else:
            old.unlink()
    for name in sources():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        # Without its time: one before that of the last build would keep what was built then.
        shutil.copy(CHECKOUT / name, target / name, follow_symlinks=False)
    stamp.unlink(missing_ok=True)
    # Whom this machine trusts: a proxy of its network may be among them.
    shutil.copy(CERTIFICATES, root / CERTIFICATES.lstrip("/"))
    inside(root, "cd /root/stallscope && ./scripts/setup && ./scripts/wheels")
    stamp.write_text(wanted)
    return dist


def payload(number: str, file: Path) -> None:
    """Make a disk of what a user carries to a host: the wheels, and scripts/ of the checkout."""
    dist = wheels(number)
    root = file.with_suffix(".root")
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(dist, root / "dist")
    for name in sources():
        if name.parts[0] == "scripts" and name.parts[:2] != ("scripts", "lib"):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(CHECKOUT / name, root / name)
    size = sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
    disk(root, file, size + size // 4 + (32 << 20))
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
        (place / systems.MADE_OF).unlink()  # its file system may be in any state
        raise
    stamp.touch()


def main() -> int:
    parser = argparse.ArgumentParser(description="make images and builds for tests/systems")
    parser.add_argument("releases", nargs="*", help=f"of {', '.join(RELEASES)} (default: all)")
    for number in parser.parse_args().releases or RELEASES:
        if number not in RELEASES:
            parser.error(f"no system {number}: {', '.join(RELEASES)}")
        systems.build(number)
        settle(number)
        wheels(number)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Unavailable as error:
        sys.exit(f"setup: {error}")
