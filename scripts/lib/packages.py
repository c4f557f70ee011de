# SPDX-License-Identifier: Apache-2.0
"""Build packages of the checkout in clean root folders of Debian: for scripts/package.

What a package consists of is made inside by the scripts of scripts/packaging. Here is what they are
given: the sources, the commit and its time, and nothing of this machine that could differ. Inside,
all is at the same paths, whatever the checkout's folder is.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from phases import PHASE, Phases, failing_line

from tests.support.cache import Unavailable, cache_folder
from tests.support.vm.roots import (
    RELEASES,
    Overlay,
    Release,
    debootstrap,
    inside,
    once,
    recorded,
    trust,
)

__all__ = ["KINDS", "build", "commit", "git", "sources", "work"]

CHECKOUT = Path(__file__).resolve().parents[2]
PACKAGING = CHECKOUT / "scripts/packaging"
KINDS = ("deb", "wheel", "tar", "image")
OLDEST = "bookworm"
"""Of what is for other distributions, too: its Python is the oldest that stallscope takes."""
NEEDS = (
    "bpftool",
    "busybox-static",
    "build-essential",
    "clang",
    "debhelper",
    "fakeroot",
    "libbpf-dev",
    "libcap2-bin",
    "libelf-dev",
    "liblzma-dev",
    "libzstd-dev",
    "lintian",
    "pkg-config",
    "python3",
    "python3-venv",
    "xz-utils",
    "zlib1g-dev",
)
ROOT_BYTES = 3 << 30
"""A root folder, what apt downloads for it, and one build."""
BUILD = "/build"
"""Inside: stallscope/ are the sources, made/ is what is made."""
BUILT_WITH = ".built-with.txt"
SBOM = ".cdx.json"


class Commit(NamedTuple):
    hash: str
    """With ``-dirty`` where the checkout has other files."""
    seconds: int
    """Since 1970: the time of everything in a package."""


def git(*words: str) -> str:
    # The checkout may belong to another user than root.
    argv = ["git", "-c", "safe.directory=*", "-C", str(CHECKOUT), *words]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Unavailable(failing_line(done.stderr))
    return done.stdout.strip()


def commit() -> Commit:
    """Return what is built."""
    changed = git("status", "--porcelain") != ""
    return Commit(
        git("rev-parse", "HEAD") + ("-dirty" if changed else ""),
        int(git("log", "-1", "--format=%ct")),
    )


def sources() -> list[Path]:
    """Return the files of the checkout, by their names in it: those that git has, or would have."""
    listed = git("ls-files", "-z", "-co", "--exclude-standard")
    found = (Path(name) for name in listed.split("\0") if name)
    return sorted(name for name in found if os.path.lexists(CHECKOUT / name))


def copy_sources(target: Path, seconds: int) -> None:
    """Copy them, with modes that depend on nothing but git, and one time."""
    for name in sources():
        source, copy = CHECKOUT / name, target / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, copy, follow_symlinks=False)
        if not copy.is_symlink():
            copy.chmod(0o755 if os.access(source, os.X_OK) else 0o644)
        os.utime(copy, (seconds, seconds), follow_symlinks=False)


@contextmanager
def work(what: str) -> Iterator[Path]:
    """Do a work in phases that are shown: yield the log of all its programs, and name it if one of
    them fails. Raises Unavailable."""
    log = cache_folder() / "packages" / f"{what.replace(' ', '-')}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("")
    began, before = time.monotonic(), cpu_seconds()
    print(f"package: {what}; all that its programs say: {log}", file=sys.stderr, flush=True)
    try:
        with recorded(log), Phases(log):
            yield log
    except Unavailable as error:
        *_, last = log.read_text(errors="replace").split(PHASE)
        name, _, said = last.partition("\n")
        raise Unavailable(f"{what}: {name}: {failing_line(said or str(error))} ({log})") from None
    took, computed = time.monotonic() - began, cpu_seconds() - before
    print(
        f"package: {what}: {took:.0f} s, {computed:.0f} s of CPU time", file=sys.stderr, flush=True
    )


def cpu_seconds() -> float:
    """Return what programs that have ended took."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def begin(log: Path, phase: str) -> None:
    with log.open("a") as file:
        file.write(f"{PHASE}{phase}\n")


def build_root(release: Release, log: Path) -> Path:
    """Return a root folder with what builds packages; it is made where it is not there."""
    tools = (PACKAGING / "tools.txt").read_text()
    recipe = hashlib.sha256("\n".join((release.suite, *NEEDS, tools)).encode()).hexdigest()
    place = cache_folder() / "packages" / release.suite

    def make(part: Path) -> None:
        root = part / "root"
        begin(log, f"the smallest system of {release.suite}")
        free = shutil.disk_usage(part).free
        if free < ROOT_BYTES:
            raise Unavailable(f"{part} has {free >> 20} MB left, it takes {ROOT_BYTES >> 20}")
        debootstrap(release, root)
        trust(root)
        (root / "root/tools.txt").write_text(tools)
        inside(
            root,
            f"echo '{PHASE}compilers and Lintian'"
            f"; apt-get -q -y install {' '.join(NEEDS)} && apt-get -q clean"
            f" && echo '{PHASE}tools of Python' && python3 -m venv /opt/tools"
            " && /opt/tools/bin/python -m pip install -q --no-cache-dir --only-binary :all:"
            " --require-hashes -r /root/tools.txt",
            PIP_DISABLE_PIP_VERSION_CHECK="1",
        )

    once(place, recipe, make, f"making a root folder of {release.suite} to build in (1 GB)")
    return place / "root"


def build(kind: str, suite: str, output: Path) -> Path:
    """Build one package; return its path. Raises Unavailable where that fails."""
    release = next(release for release in RELEASES.values() if release.suite == suite)
    made_from = commit()
    with work(f"{kind} {suite}") as log:
        base = build_root(release, log)
        downloads = cache_folder() / "packages" / "pip"
        downloads.mkdir(exist_ok=True)
        scratch = cache_folder() / "packages" / "scratch"
        scratch.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=scratch, prefix=f"{kind}-") as folder:
            root = Overlay(base, Path(folder), {"/var/cache/pip": downloads})
            copy_sources(root.path(f"{BUILD}/stallscope"), made_from.seconds)
            root.check(
                f"umask 022; mkdir {BUILD}/made; cd {BUILD}/stallscope"
                f"; scripts/packaging/build-{kind}"
                f"; dpkg-query -W -f '${{binary:Package}} ${{Version}}\\n' >{BUILD}/built-with",
                SOURCE_DATE_EPOCH=str(made_from.seconds),
                STALLSCOPE_COMMIT=made_from.hash,
                SUITE=release.suite,
                RELEASE=release.number,
                PIP_CACHE_DIR="/var/cache/pip",
                PIP_DISABLE_PIP_VERSION_CHECK="1",
                PIP_ROOT_USER_ACTION="ignore",
            )
            output.mkdir(parents=True, exist_ok=True)
            made = sorted(root.path(f"{BUILD}/made").iterdir())
            for file in made:
                shutil.copyfile(file, output / file.name)
            (package,) = (file.name for file in made if not file.name.endswith(SBOM))
            shutil.copyfile(root.path(f"{BUILD}/built-with"), output / f"{package}{BUILT_WITH}")
    return output / package


NOT_PACKED = frozenset({"apprise"})
"""Extras that no package has: 20 MB for few. Debian has this one, pip too."""


def lock() -> None:
    """Write the files of versions and hashes."""
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].keys() - NOT_PACKED
    inputs = {
        "requirements.txt": (*(f"--extra={name}" for name in sorted(extras)), "pyproject.toml"),
        "tools.txt": ("scripts/packaging/tools.in",),
    }
    for name, words in inputs.items():
        common = ("--universal", "--python-version=3.11", "--generate-hashes", "--upgrade")
        written = ("--no-header", "--no-annotate", "--only-binary=:all:", "--quiet")
        file = PACKAGING / name
        subprocess.run(
            [
                *(Path(sys.executable).with_name("uv"), "pip", "compile", *common, *written),
                *(f"--output-file={file}", *words),
            ],
            cwd=CHECKOUT,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        print(file)


def host_suite() -> str:
    """Return this machine's release, or the oldest."""
    try:
        lines = Path("/etc/os-release").read_text().splitlines()
    except OSError:
        return OLDEST
    known = [release.suite for release in RELEASES.values()]
    named = [line.partition("=")[2] for line in lines if line.startswith("VERSION_CODENAME=")]
    return named[0] if named and named[0] in known else OLDEST


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/package")
    parser.add_argument("kind", choices=(*KINDS, "lock"))
    parser.add_argument("--suite", choices=[release.suite for release in RELEASES.values()])
    parser.add_argument("--output", type=Path, default=CHECKOUT / "dist")
    args = parser.parse_args(argv)
    # What runs in a root folder ends with this, however it is ended.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if args.kind == "lock":
        lock()
        return 0
    if args.suite and args.kind != "deb":
        parser.error(f"a {args.kind} is for all releases: no --suite")
    suite = (args.suite or host_suite()) if args.kind == "deb" else OLDEST
    try:
        print(build(args.kind, suite, args.output.resolve()))
    except Unavailable as error:
        sys.exit(f"package: {error}")
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
