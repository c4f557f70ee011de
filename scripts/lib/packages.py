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
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.support.servers.cache import Unavailable, cache_folder
from tests.support.vm.roots import (
    RELEASES,
    Overlay,
    Release,
    debootstrap,
    inside,
    once,
    run,
    trust,
)

__all__ = ["KINDS", "build", "commit", "sources"]

CHECKOUT = Path(__file__).resolve().parents[2]
PACKAGING = CHECKOUT / "scripts/packaging"
KINDS = ("deb", "wheel", "tar")
OLDEST = "bookworm"
"""Of what is for other distributions, too: its Python is the oldest that stallscope takes."""
NOT_FOR_HOSTS = ("dev", "fuzz")
"""Extras that packages do not have."""
NEEDS = (
    "bpftool",
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
BUILD = "/build"
"""Inside: stallscope/ are the sources, made/ is what is made."""


class Commit(NamedTuple):
    hash: str
    """With ``-dirty`` where the checkout has other files."""
    seconds: int
    """Since 1970: the time of everything in a package."""


def git(*words: str) -> str:
    # The checkout may belong to another user than root.
    return run(["git", "-c", "safe.directory=*", "-C", CHECKOUT, *words]).strip()


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


def build_root(release: Release) -> Path:
    """Return a root folder with what builds packages; it is made where it is not there."""
    tools = (PACKAGING / "tools.txt").read_text()
    recipe = hashlib.sha256("\n".join((release.suite, *NEEDS, tools)).encode()).hexdigest()
    place = cache_folder() / "packages" / release.suite

    def make(part: Path) -> None:
        root = part / "root"
        debootstrap(release, root)
        trust(root)
        (root / "root/tools.txt").write_text(tools)
        inside(
            root,
            f"apt-get -q -y install {' '.join(NEEDS)} && apt-get -q clean"
            " && python3 -m venv /opt/tools"
            " && /opt/tools/bin/python -m pip install -q --no-cache-dir --only-binary :all:"
            " --require-hashes -r /root/tools.txt",
            PIP_DISABLE_PIP_VERSION_CHECK="1",
        )

    once(place, recipe, make, f"making a root folder of {release.suite} to build in (1 GB)")
    return place / "root"


def build(kind: str, suite: str, output: Path) -> Path:
    """Build one package; return its path. Raises Unavailable where that fails."""
    release = next(release for release in RELEASES.values() if release.suite == suite)
    base = build_root(release)
    downloads = cache_folder() / "packages" / "pip"
    downloads.mkdir(exist_ok=True)
    made_from = commit()
    scratch = cache_folder() / "packages" / "scratch"
    scratch.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=scratch, prefix=f"{kind}-") as folder:
        root = Overlay(base, Path(folder), {"/var/cache/pip": downloads})
        copy_sources(root.path(f"{BUILD}/stallscope"), made_from.seconds)
        said = root.check(
            f"umask 022; mkdir {BUILD}/made; cd {BUILD}/stallscope; scripts/packaging/build-{kind}",
            SOURCE_DATE_EPOCH=str(made_from.seconds),
            STALLSCOPE_COMMIT=made_from.hash,
            SUITE=release.suite,
            RELEASE=release.number,
            PIP_CACHE_DIR="/var/cache/pip",
            PIP_DISABLE_PIP_VERSION_CHECK="1",
            PIP_ROOT_USER_ACTION="ignore",
        )
        print(said, end="", flush=True)
        output.mkdir(parents=True, exist_ok=True)
        made = sorted(root.path(f"{BUILD}/made").iterdir())
        for file in made:
            shutil.copyfile(file, output / file.name)
        packages = [file.name for file in made if not file.name.endswith(".cdx.json")]
        assert len(packages) == 1, packages
        return output / packages[0]


def lock() -> None:
    """Write the files of versions and hashes."""
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    extras = [name for name in project["optional-dependencies"] if name not in NOT_FOR_HOSTS]
    inputs = {
        "requirements.txt": (*(f"--extra={name}" for name in extras), "pyproject.toml"),
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
    if args.kind == "lock":
        lock()
        return 0
    if args.suite and args.kind != "deb":
        parser.error(f"a {args.kind} is for all releases: no --suite")
    if os.geteuid() != 0:
        sys.exit("package: it takes root: debootstrap and mounts do")
    for program in ("debootstrap", "unshare"):
        if shutil.which(program) is None:
            sys.exit(f"package: no {program} here: apt-get install debootstrap util-linux")
    suite = (args.suite or host_suite()) if args.kind == "deb" else OLDEST
    try:
        print(build(args.kind, suite, args.output.resolve()))
    except Unavailable as error:
        sys.exit(f"package: {error}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
