# SPDX-License-Identifier: Apache-2.0
"""Make all files of a release from one commit, and publish nothing: for scripts/release."""

from __future__ import annotations

import argparse
import email.utils
import gzip
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from packages import CHECKOUT, OLDEST, Commit, build, commit, git

from tests.support.cache import Unavailable
from tests.support.vm.roots import RELEASES

__all__ = ["apt_repository", "changes", "refusal", "release"]

SUMS = "SHA256SUMS"


def changes(version: str, changelog: str) -> str | None:
    """Return what a changelog says of a version."""
    found = re.search(rf"^## {re.escape(version)}\n(.*?)(?=^## |\Z)", changelog, re.M | re.S)
    return found[1].strip() if found else None


def refusal(version: str, output: Path) -> str | None:
    """Return why the checkout is not to be released as this version."""
    own = (CHECKOUT / "VERSION").read_text().strip()
    if version != own:
        return f"VERSION is {own}"
    if changes(version, (CHECKOUT / "CHANGELOG.md").read_text()) is None:
        return f"CHANGELOG.md has no section '## {version}'"
    if changed := git("status", "--porcelain"):
        return f"files that are not committed: {changed.splitlines()[0].split()[-1]}"
    if git("tag", "--list", f"v{version}"):
        return f"the tag v{version} is there"
    if output.exists() and any(output.iterdir()):
        return f"{output} is not empty"
    return None


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def program(name: str, *words: str | Path) -> str:
    """Run a program that may ask for a password; return what it prints."""
    try:
        done = subprocess.run([name, *words], stdout=subprocess.PIPE, text=True, check=False)
    except FileNotFoundError:
        raise Unavailable(f"no {name} here: apt-get install {name}") from None
    if done.returncode != 0:
        raise Unavailable(f"{name} failed, exit code {done.returncode}")
    return done.stdout


def index_entry(deb: Path, name: str) -> str:
    """Return the paragraph of a package in a list of packages; ``name``: its path there."""
    fields = program("dpkg-deb", "--field", deb).strip()
    data = deb.read_bytes()
    return f"{fields}\nFilename: {name}\nSize: {len(data)}\nSHA256: {sha256(data)}\n"


def apt_repository(folder: Path, debs: dict[str, Path], seconds: int, key: str | None) -> None:
    """Make a folder that apt can read, of one package for each suite.

    With a key of gpg's it is signed, as if at the commit's time, so that it is the same again.
    """
    for suite, deb in debs.items():
        place = folder / "dists" / suite
        pool = Path("pool") / suite / deb.name
        (folder / pool).parent.mkdir(parents=True)
        shutil.copy(deb, folder / pool)
        lists = Path("main/binary-amd64/Packages")
        (place / lists).parent.mkdir(parents=True)
        packages = index_entry(deb, str(pool)).encode()
        files = {str(lists): packages, f"{lists}.gz": gzip.compress(packages, mtime=0)}
        for name, data in files.items():
            (place / name).write_bytes(data)
        head = {
            "Origin": "stallscope",
            "Label": "stallscope",
            "Suite": suite,
            "Codename": suite,
            "Date": email.utils.formatdate(seconds, usegmt=True),
            "Architectures": "amd64",
            "Components": "main",
        }
        sums = [
            f" {hashlib.sha256(files[name]).hexdigest()} {len(files[name])} {name}"
            for name in files
        ]
        text = "\n".join([*(f"{name}: {value}" for name, value in head.items()), "SHA256:", *sums])
        (place / "Release").write_text(text + "\n")
        if key is not None:
            time = f"--faked-system-time={seconds}!"
            common = ("--batch", "--yes", time, "--local-user", key)
            program(
                "gpg", *common, "--output", place / "InRelease", "--clearsign", place / "Release"
            )
    if key is not None:
        program("gpg", "--batch", "--output", folder / "stallscope.gpg", "--export", key)


def checksums(folder: Path) -> str:
    """Return the lines of SHA256SUMS for all files below a folder."""
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    return "".join(f"{sha256((folder / name).read_bytes())}  {name}\n" for name in names)


def release(
    version: str, made_from: Commit, output: Path, minisign: Path | None, gpg: str | None
) -> None:
    """Make all files in a folder."""
    said = changes(version, (CHECKOUT / "CHANGELOG.md").read_text())
    assert said is not None
    output.mkdir(parents=True, exist_ok=True)
    (output / "CHANGES.md").write_text(f"# stallscope {version}\n\n{said}\n")
    # git takes lines that begin with # for comments.
    plain = re.sub(r"^#+ ", "", said, flags=re.M)
    (output / "TAG").write_text(f"stallscope {version}\n\nCommit {made_from.hash}\n\n{plain}\n")
    debs = {one.suite: build("deb", one.suite, output) for one in RELEASES.values()}
    for kind in ("wheel", "tar", "image"):
        build(kind, OLDEST, output)
    apt_repository(output / "apt", debs, made_from.seconds, gpg)
    sums = output / SUMS
    sums.write_text(checksums(output))
    if minisign is not None:
        comment = f"stallscope {version} {made_from.hash}"
        program("minisign", "-S", "-s", minisign, "-m", sums, "-t", comment)


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/release")
    parser.add_argument("version")
    parser.add_argument("--output", type=Path)
    key = os.environ.get("STALLSCOPE_MINISIGN_KEY")
    parser.add_argument("--minisign-key", type=Path, default=Path(key) if key else None)
    parser.add_argument("--gpg-key", default=os.environ.get("STALLSCOPE_GPG_KEY"))
    args = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    output = (args.output or CHECKOUT / "dist" / args.version).resolve()
    try:
        if reason := refusal(args.version, output):
            sys.exit(f"release: {reason}")
        # A key that cannot sign is seen before the builds.
        if args.gpg_key:
            program("gpg", "--batch", "--quiet", "--list-secret-keys", args.gpg_key)
        if args.minisign_key and not (shutil.which("minisign") and args.minisign_key.is_file()):
            sys.exit(f"release: no minisign here, or no key {args.minisign_key}")
        release(args.version, commit(), output, args.minisign_key, args.gpg_key)
    except Unavailable as error:
        sys.exit(f"release: {error}")
    except KeyboardInterrupt:
        return 130
    for what, given in (("SHA256SUMS", args.minisign_key), ("apt repository", args.gpg_key)):
        if not given:
            print(f"release: the {what} is not signed: no key was given", file=sys.stderr)
    print(output)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
