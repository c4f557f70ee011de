# SPDX-License-Identifier: Apache-2.0
"""Packages that are built once for all tests, and clean root folders to install them in."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.servers.cache import cache_folder
from tests.support.vm.roots import Overlay, Release, debootstrap, inside, once, trust

__all__ = ["build", "clean_root"]

CHECKOUT = Path(__file__).resolve().parents[2]
BUILD_SECONDS = 3000
NAMES = {
    "deb bookworm": "stallscope_*~deb12_amd64.deb",
    "deb trixie": "stallscope_*~deb13_amd64.deb",
    "wheel": "stallscope-*.whl",
    "tar": "stallscope-*.tar.xz",
}

Builder = Callable[[str], Path]
Roots = Callable[..., Overlay]


def build(output: Path, *words: str, checkout: Path = CHECKOUT) -> Path:
    """Build a package as a user does; return its path."""
    done = subprocess.run(
        [checkout / "scripts/package", *words, "--output", output],
        capture_output=True,
        text=True,
        timeout=BUILD_SECONDS,
        check=False,
    )
    assert done.returncode == 0, (done.stdout[-4000:], done.stderr[-4000:])
    return Path(done.stdout.splitlines()[-1])


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Builder:
    """Return a function that builds ``deb bookworm``, ``wheel`` and others, each once.

    STALLSCOPE_PACKAGES names a folder with packages that were built before.
    """
    folder = tmp_path_factory.mktemp("packages")
    before = os.environ.get("STALLSCOPE_PACKAGES")
    found: dict[str, Path] = {}

    def make(what: str) -> Path:
        if before is not None:
            (found[what],) = Path(before).glob(NAMES[what])
        if what not in found:
            kind, *suite = what.split()
            words = [kind, *(("--suite", suite[0]) if suite else ())]
            found[what] = build(folder / what.replace(" ", "-"), *words)
        return found[what]

    return make


def clean_root(suite: str, *packages: str) -> Path:
    """Return the smallest system of a release with some packages; nothing is to change it."""
    name = "-".join((suite, "clean", *packages))
    place = cache_folder() / "packages" / name

    def make(part: Path) -> None:
        root = part / "root"
        debootstrap(Release("", suite), root, updates=suite in ("bookworm", "trixie"))
        trust(root)
        if packages:
            inside(root, f"apt-get -q -y install {' '.join(packages)}")

    once(place, " ".join((suite, *packages)), make, f"making a root folder of {suite} (150 MB)")
    return place / "root"


@pytest.fixture
def root(tmp_path: Path) -> Roots:
    """Return a function that makes a root folder of a release, for this test alone."""

    def make(suite: str, *packages: str, files: tuple[Path, ...] = ()) -> Overlay:
        overlay = Overlay(clean_root(suite, *packages), tmp_path / "overlay")
        for file in files:
            target = overlay.path(f"/srv/{file.name}")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, target)
        return overlay

    return make
