# SPDX-License-Identifier: Apache-2.0
"""Root folders of Debian: made once by debootstrap, and used as often as wanted without a change.

A command runs in a root folder with mount and process namespaces of its own; what it mounts and
starts is gone with it.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.support.cache import Unavailable

__all__ = [
    "ARCHIVE",
    "MADE_OF",
    "RELEASES",
    "Done",
    "Overlay",
    "Release",
    "debootstrap",
    "inside",
    "missing",
    "once",
    "recorded",
    "run",
    "trust",
]

ARCHIVE = "http://deb.debian.org/debian"
SECURITY = "http://deb.debian.org/debian-security"
CERTIFICATES = "etc/ssl/certs/ca-certificates.crt"
PROXIES = frozenset({"http_proxy", "https_proxy", "no_proxy"})
MADE_OF = "made-of"
"""File next to what was made: its recipe."""
SECONDS = 3600


class Release(NamedTuple):
    number: str
    suite: str


RELEASES = {
    release.number: release for release in (Release("12", "bookworm"), Release("13", "trixie"))
}


def missing() -> str | None:
    """Return why no root folder can be made here."""
    if os.geteuid() != 0:
        return "not root"
    path = f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin"
    absent = [name for name in ("debootstrap", "unshare") if shutil.which(name, path=path) is None]
    return f"no {absent[0]} here: run scripts/setup --packages" if absent else None


class Done(NamedTuple):
    """What a command did; ``said``: both of its streams."""

    code: int
    said: str


_record: Path | None = None


@contextmanager
def recorded(log: Path) -> Iterator[None]:
    """Append what programs print to a file, while they run."""
    global _record
    _record = log
    try:
        yield
    finally:
        _record = None


def _run(argv: Sequence[str | Path], environment: Mapping[str, str]) -> Done:
    with tempfile.TemporaryFile("a+b") if _record is None else _record.open("a+b") as output:
        start = output.seek(0, os.SEEK_END)
        done = subprocess.run(
            [str(word) for word in argv],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=SECONDS,
            check=False,
            env={**environment, "LC_ALL": "C.UTF-8"},
        )
        output.seek(start)
        return Done(done.returncode, output.read().decode(errors="replace"))


def run(argv: Sequence[str | Path], **environment: str) -> str:
    """Run a program and return what it prints; its complaint is the error's text."""
    path = f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin"
    return _checked(argv, {**os.environ, "PATH": path, **environment})


def _checked(argv: Sequence[str | Path], environment: Mapping[str, str]) -> str:
    done = _run(argv, environment)
    if done.code != 0:
        words = " ".join(str(word) for word in argv)
        raise Unavailable(f"{words[:200]}: exit code {done.code}:\n{done.said[-2000:]}")
    return done.said


def _entering(root: Path, before: str, shell: str, script: str, last: str = "") -> list[str]:
    """Return the command that runs a script in a root folder, after what ``before`` mounts.

    ``last`` is what enters it, by default chroot.
    """
    last = last or f"exec chroot {root}"
    mounts = (
        f"{before} mount -t proc proc {root}/proc && mount -t sysfs sys {root}/sys"
        f" && mount --rbind /dev {root}/dev && {last} {shell} -euc {shlex.quote(script)}"
    )
    namespaces = ("--mount", "--propagation=private", "--pid", "--fork", "--kill-child")
    return ["unshare", *namespaces, "/bin/sh", "-euc", mounts]


def _environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return all of a script's environment: of this machine's only how its network is reached."""
    network = {name: value for name, value in os.environ.items() if name.lower() in PROXIES}
    certificates = f"/{CERTIFICATES}"
    return {
        **network,
        **dict.fromkeys(("PIP_CERT", "NODE_EXTRA_CA_CERTS"), certificates),
        "DEBIAN_FRONTEND": "noninteractive",
        "HOME": "/root",
        "TMPDIR": "/tmp",
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        **environment,
    }


def inside(root: Path, script: str, **environment: str) -> str:
    """Run a shell script in a root folder, with its /proc and /sys, which are gone with it."""
    return _checked(["nice", *_entering(root, "", "/bin/bash", script)], _environment(environment))


class Overlay:
    """A root folder that begins as another one; what is changed in it stays in its own folder."""

    def __init__(
        self,
        base: Path | Overlay,
        folder: Path,
        binds: Mapping[str, Path] | None = None,
        last: Callable[[Path], str] = lambda root: "",
    ) -> None:
        """``binds``: folders of this machine, by the names that they have inside; ``last``: the
        shell command that enters it and runs what follows, for what root may not do there."""
        self._folder: Path = folder
        self._lower: str = str(base)
        if isinstance(base, Overlay):
            self._lower = f"{base._folder}/upper:{base._lower}"
        self._binds = dict(binds or {})
        self._last = last
        for name in ("upper", "work", "root"):
            (folder / name).mkdir(parents=True, exist_ok=True)

    def path(self, name: str) -> Path:
        """Return where a file is that was changed or made inside, or is to be put there."""
        return self._folder / "upper" / name.lstrip("/")

    def run(self, script: str, **environment: str) -> Done:
        """Run a shell script as root."""
        root = self._folder / "root"
        mounts = (
            f"mount -t overlay overlay -o lowerdir={self._lower},upperdir={self._folder}/upper,"
            f"workdir={self._folder}/work {root} &&"
        )
        for name, source in self._binds.items():
            place = f"{root}/{name.lstrip('/')}"
            mounts += f" mkdir -p {place} && mount --bind {source} {place} &&"
        argv = _entering(root, mounts, "/bin/sh", script, self._last(root))
        return _run(argv, _environment(environment))

    def check(self, script: str, **environment: str) -> str:
        """Run a shell script that is to succeed; return what it printed."""
        done = self.run(script, **environment)
        if done.code != 0:
            raise Unavailable(f"{script[:200]}: exit code {done.code}:\n{done.said[-4000:]}")
        return done.said


def debootstrap(release: Release, root: Path, *, updates: bool = True) -> None:
    """Make a smallest system, whose apt knows the release's updates, and starts no service.

    Without ``updates``, for releases that have none, it knows the release alone, however old this
    machine's mirror of it is.
    """
    run(
        [
            "nice",
            "debootstrap",
            "--variant=minbase",
            "--include=ca-certificates",
            release.suite,
            root,
            ARCHIVE,
        ]
    )
    options = "" if updates else "[check-valid-until=no] "
    sources = [f"deb {options}{ARCHIVE} {release.suite} main"]
    later = [
        f"deb {ARCHIVE} {release.suite}-updates main",
        f"deb {SECURITY} {release.suite}-security main",
    ]
    (root / "etc/apt/sources.list").write_text("\n".join(sources + later * updates) + "\n")
    (root / "etc/apt/apt.conf.d/90tests").write_text(
        'APT::Install-Recommends "false";\nDpkg::Use-Pty "0";\n'
        'Dpkg::Options { "--force-unsafe-io"; };\n'
    )
    guard = root / "usr/sbin/policy-rc.d"
    guard.write_text("#!/bin/sh\nexit 101\n")
    guard.chmod(0o755)
    shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")
    inside(root, "apt-get -q update")


def trust(root: Path) -> None:
    """Let a root folder trust whom this machine trusts: a proxy of its network may be among
    them."""
    shutil.copy(f"/{CERTIFICATES}", root / CERTIFICATES)


def once(place: Path, recipe: str, make: Callable[[Path], None], say: str) -> None:
    """Make a folder by a recipe, unless it is there and made by the same."""
    stamp = place / MADE_OF
    if stamp.exists() and stamp.read_text() == recipe:
        return
    print(f"setup: {say}", flush=True)
    part = place.with_name(place.name + ".part")
    for old in (part, place):
        shutil.rmtree(old, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        make(part)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    (part / MADE_OF).write_text(recipe)
    part.rename(place)
