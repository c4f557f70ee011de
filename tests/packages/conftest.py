# SPDX-License-Identifier: Apache-2.0
"""A release that is made once for all tests, and clean root folders to install its packages in."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.cache import cache_folder
from tests.support.vm.roots import Overlay, Release, debootstrap, inside, once, trust

__all__ = ["BEFORE", "CHECKOUT", "Keys", "clean_root", "clone", "make_release", "run"]

CHECKOUT = Path(__file__).resolve().parents[2]
VERSION = (CHECKOUT / "VERSION").read_text().strip()
BEFORE = os.environ.get("STALLSCOPE_PACKAGES")
"""A release that was made before, with keys of its own."""
RELEASE_SECONDS = 7200
NAMES = {
    "deb bookworm": "stallscope_*~deb12_amd64.deb",
    "deb trixie": "stallscope_*~deb13_amd64.deb",
    "wheel": "stallscope-*.whl",
    "tar": "stallscope-*.tar.xz",
    "image": "stallscope-*-image.tar",
}

Builder = Callable[[str], Path]
Roots = Callable[..., Overlay]


class Keys:
    """Keys of nobody, to sign a release with."""

    def __init__(self, folder: Path) -> None:
        self.minisign, self.public = folder / "key", folder / "key.pub"
        self.home = folder / "gpg"
        self.home.mkdir(mode=0o700)
        run("minisign", "-G", "-W", "-s", self.minisign, "-p", self.public)
        # Older than any commit.
        at = ("--batch", "--passphrase", "", "--faked-system-time", "20200101T000000")
        run("gpg", "--homedir", self.home, *at, "--quick-gen-key", "nobody", "ed25519", "sign", "0")

    def environment(self) -> dict[str, str]:
        return {
            "GNUPGHOME": str(self.home),
            "STALLSCOPE_GPG_KEY": "nobody",
            "STALLSCOPE_MINISIGN_KEY": str(self.minisign),
        }


def run(*argv: str | Path, seconds: int = 60, **environment: str) -> str:
    done = subprocess.run(
        argv,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, (argv, done.stdout[-2000:], done.stderr[-2000:])
    return done.stdout


def clone(folder: Path) -> Path:
    """Return a clone of the checkout's commit, in a folder."""
    run("git", "clone", "--quiet", "--no-tags", CHECKOUT, folder / "clone")
    return folder / "clone"


def make_release(folder: Path, keys: Keys) -> Path:
    """Make a release of the checkout's commit in a folder; return its files."""
    words = (VERSION, "--output", folder / "out")
    script = clone(folder) / "scripts/release"
    run(script, *words, seconds=RELEASE_SECONDS, **keys.environment())
    return folder / "out"


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keys]:
    keys = Keys(tmp_path_factory.mktemp("keys"))
    yield keys
    run("gpgconf", "--homedir", keys.home, "--kill", "all")


@pytest.fixture(scope="session")
def released(tmp_path_factory: pytest.TempPathFactory, keys: Keys) -> Path:
    """Return the files of a release of the checkout's commit."""
    if BEFORE is not None:
        return Path(BEFORE).resolve()
    return make_release(tmp_path_factory.mktemp("release"), keys)


@pytest.fixture(scope="session")
def built(released: Path) -> Builder:
    """Return a function that finds ``deb bookworm``, ``wheel`` and others in the release."""

    def find(what: str) -> Path:
        (found,) = released.glob(NAMES[what])
        return found

    return find


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
