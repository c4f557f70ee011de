# SPDX-License-Identifier: Apache-2.0
"""Download kernels of Debian's, one for each series that the matrix is of.

``python -m tests.support.vm.kernels [SERIES ...]`` downloads what the cache lacks. The packages of
the machine and their lists are not touched: apt gets a configuration of its own.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from tests.support.cache import Unavailable, cache_folder, why_missing

__all__ = ["SERIES", "Kernel", "find", "get"]

SERIES = {"5.10": "bullseye", "6.1": "bookworm", "6.12": "trixie", "newest": "sid"}
"""What a kernel is called here, and the release of Debian that has it."""

MIRROR = "http://deb.debian.org/debian"
"""Overridden by STALLSCOPE_DEBIAN_MIRROR."""
KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"
META = "linux-image-amd64"
SECONDS = 900

APT = """\
Dir::Etc::sourcelist "{folder}/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::State::lists "{folder}/lists";
Dir::State::status "/dev/null";
Dir::Cache::archives "{folder}/archives";
Dir::Cache::pkgcache "{folder}/pkgcache.bin";
Dir::Cache::srcpkgcache "{folder}/srcpkgcache.bin";
Acquire::Languages "none";
Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
APT::Architecture "amd64";
APT::Sandbox::User "root";
"""


class Kernel(NamedTuple):
    """A kernel image, with its modules in ``lib/modules`` of the same folder."""

    series: str
    release: str
    """As ``uname -r`` prints it."""
    image: Path


def folder_of(series: str) -> Path:
    return cache_folder() / "kernels" / series


def find(series: str) -> Kernel:
    """Return a kernel that was downloaded; raises Unavailable, with the reason, where none was."""
    images = sorted(folder_of(series).glob("boot/vmlinuz-*"))
    if not images:
        reason = why_missing(f"kernel-{series}").replace("--tests", "--kernels")
        raise Unavailable(f"kernel {series}: {reason}")
    return Kernel(series, images[-1].name.removeprefix("vmlinuz-"), images[-1])


def apt(folder: Path, *argv: str) -> str:
    """Run one of apt's commands on the lists of ``folder``; raises Unavailable where it fails."""
    done = subprocess.run(
        argv,
        cwd=folder / "archives",
        env={**os.environ, "APT_CONFIG": str(folder / "apt.conf"), "LC_ALL": "C"},
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    if done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if line.startswith("E:")]
        raise Unavailable(f"{' '.join(argv)}: {said[0] if said else done.stderr.strip()[-300:]}")
    return done.stdout


def depends(folder: Path, package: str) -> list[str]:
    """Return the packages that one needs, without alternatives and versions."""
    shown = apt(folder, "apt-cache", "show", "--no-all-versions", package)
    found = re.search(r"^Depends: (.*)$", shown, re.MULTILINE)
    return [part.split()[0] for part in found[1].split(",")] if found else []


def packages(folder: Path) -> list[str]:
    """Return the package of the image, or where it is split, those of the image and the modules."""
    (image,) = [name for name in depends(folder, META) if name.startswith("linux-image-")]
    parts = [
        name
        for name in depends(folder, image)
        if name.startswith(("linux-binary-", "linux-modules-"))
    ]
    return parts or [image]


def unpack(archives: Path, root: Path) -> None:
    """Unpack the packages below ``root``, with the image in ``boot`` and modules in ``lib``."""
    for archive in archives.glob("*.deb"):
        subprocess.run(["dpkg-deb", "-x", archive, root], check=True, timeout=SECONDS)
    if not (root / "lib").exists():
        (root / "lib").symlink_to("usr/lib")
    (root / "boot").mkdir(exist_ok=True)
    for image in root.glob("usr/lib/modules/*/vmlinuz"):
        shutil.copy(image, root / "boot" / f"vmlinuz-{image.parent.name}")
    for part in ("usr/share", "boot/System.map"):
        for path in root.glob(f"{part}*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def get(series: str) -> Kernel:
    """Download a kernel, unless that was done before; raises Unavailable where that fails."""
    final, part = folder_of(series), folder_of(series).with_name(f"{series}.part")
    if (final / "boot").exists():
        return find(series)
    for name in ("apt", "root"):
        shutil.rmtree(part / name, ignore_errors=True)
    folder = part / "apt"
    for name in ("lists/partial", "archives/partial"):
        (folder / name).mkdir(parents=True)
    mirror = os.environ.get("STALLSCOPE_DEBIAN_MIRROR", MIRROR)
    (folder / "apt.conf").write_text(APT.format(folder=folder))
    (folder / "sources.list").write_text(f"deb [signed-by={KEYS}] {mirror} {SERIES[series]} main\n")
    apt(folder, "apt-get", "update", "-q")
    apt(folder, "apt-get", "download", "-q", *packages(folder))
    unpack(folder / "archives", part / "root")
    (part / "root").rename(final)
    shutil.rmtree(part)
    return find(series)


def main() -> int:
    """Download; what cannot be had is recorded for those who ask why, and is no failure."""
    unavailable = cache_folder() / "unavailable"
    for series in sys.argv[1:] or SERIES:
        record = unavailable / f"kernel-{series}"
        try:
            if series not in SERIES:
                raise Unavailable(f"no such series; there are {', '.join(SERIES)}")
            kernel = get(series)
        except (Unavailable, OSError, subprocess.SubprocessError, ValueError) as error:
            unavailable.mkdir(parents=True, exist_ok=True)
            record.write_text(f"{error}\n")
            print(f"setup: kernel {series} cannot be had: {error}")
            continue
        record.unlink(missing_ok=True)
        print(f"setup: kernel {series}: {kernel.release}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
