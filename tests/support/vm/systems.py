# SPDX-License-Identifier: Apache-2.0
"""Images of Debian with systemd and MariaDB, made by debootstrap from Debian's archive.

An image has what a database host has, and nothing of stallscope.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.support.servers.cache import Unavailable, cache_folder

__all__ = [
    "ARCHIVE",
    "BOOTED",
    "MADE_OF",
    "RELEASES",
    "Image",
    "Release",
    "build",
    "debootstrap",
    "disk",
    "folder",
    "image",
    "inside",
    "missing",
    "once",
    "run",
    "wanted",
]

HERE = Path(__file__).resolve().parent
ARCHIVE = "http://deb.debian.org/debian"
SECURITY = "http://deb.debian.org/debian-security"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
IMAGE_BYTES = 6 << 30
"""Of the file system; the file is sparse."""
MADE_OF, BOOTED = "made-of", "booted"
"""Files next to an image: the recipe that made it; a mark that it was booted once."""
SECONDS = 3600
TOOLS = ("debootstrap", "mkfs.ext4", "qemu-system-x86_64", "dpkg-deb", "unshare")


class Release(NamedTuple):
    number: str
    suite: str


RELEASES = {
    release.number: release for release in (Release("12", "bookworm"), Release("13", "trixie"))
}

# What a host has that runs a database, and what docs/agent.md says the agent needs there.
SYSTEM = (
    "systemd-sysv",
    "dbus",
    "udev",
    "linux-image-amd64",
    "initramfs-tools",
    "apparmor",
    "procps",
    "python3",
    "python3-venv",
    "libbpf1",
    "libcap2-bin",
)
SERVER = ("mariadb-server", "mariadb-server-core", "mariadb-client", "mariadb-client-core")
CHANGED = ("mariadb-server", "mariadb-server-core")
"""Of the server's packages those that are packed again, where the archive has one version alone."""
INITRD = ("virtio_pci", "virtio_blk", "ext4")


class Image(NamedTuple):
    """A system that can be booted; nothing writes to its disk."""

    release: Release
    disk: Path
    kernel: Path
    initrd: Path


def folder(release: Release) -> Path:
    return cache_folder() / "systems" / release.number


def image(number: str, *, settled: bool = True) -> Image:
    """Return the image of a release; raise Unavailable where it was not made.

    ``settled``: it was booted before.
    """
    release = RELEASES.get(number)
    if release is None:
        raise Unavailable(f"no system {number}: {', '.join(RELEASES)}")
    place = folder(release)
    stamps = (MADE_OF, BOOTED) if settled else (MADE_OF,)
    if not all((place / stamp).exists() for stamp in stamps):
        raise Unavailable(f"no image of Debian {number}: run scripts/setup --systems")
    return Image(release, place / "disk.ext4", place / "vmlinuz", place / "initrd.img")


def missing() -> str | None:
    """Return why no image can be made or booted here."""
    if os.geteuid() != 0:
        return "not root"
    path = f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin"
    absent = [name for name in TOOLS if shutil.which(name, path=path) is None]
    if absent:
        return f"no {absent[0]} here: run scripts/setup --systems"
    try:
        for number in wanted():
            image(number)
    except Unavailable as error:
        return str(error)
    return None


def wanted() -> list[str]:
    """Return the releases that STALLSCOPE_SYSTEMS names, or all."""
    return os.environ.get("STALLSCOPE_SYSTEMS", "").split() or list(RELEASES)


def run(argv: Sequence[str | Path], **environment: str) -> str:
    """Run a program and return what it prints; its complaint is the error's text."""
    path = f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin"
    done = subprocess.run(
        [str(word) for word in argv],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=SECONDS,
        check=False,
        env={**os.environ, "PATH": path, "LC_ALL": "C.UTF-8", **environment},
    )
    if done.returncode != 0:
        words = " ".join(str(word) for word in argv)
        raise Unavailable(f"{words[:200]}: exit code {done.returncode}:\n{done.stdout[-2000:]}")
    return done.stdout


def inside(root: Path, script: str) -> str:
    """Run a shell script in a root folder, with its /proc and /sys, which are gone with it."""
    mounts = (
        f"mount -t proc proc {root}/proc && mount -t sysfs sys {root}/sys"
        f" && mount --rbind /dev {root}/dev && exec chroot {root} /bin/bash -euc "
    )
    quoted = "'" + script.replace("'", "'\\''") + "'"
    return run(
        ["nice", "unshare", "--mount", "--propagation=private", "/bin/sh", "-euc", mounts + quoted],
        DEBIAN_FRONTEND="noninteractive",
        HOME="/root",
        TMPDIR="/tmp",
    )


def debootstrap(release: Release, root: Path) -> None:
    """Make a smallest system, whose apt knows the release's updates, and starts no service."""
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
    sources = [
        f"deb {ARCHIVE} {release.suite} main",
        f"deb {ARCHIVE} {release.suite}-updates main",
        f"deb {SECURITY} {release.suite}-security main",
    ]
    (root / "etc/apt/sources.list").write_text("\n".join(sources) + "\n")
    (root / "etc/apt/apt.conf.d/90tests").write_text(
        'APT::Install-Recommends "false";\nDpkg::Use-Pty "0";\n'
        'Dpkg::Options { "--force-unsafe-io"; };\n'
    )
    guard = root / "usr/sbin/policy-rc.d"
    guard.write_text("#!/bin/sh\nexit 101\n")
    guard.chmod(0o755)
    shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")
    inside(root, "apt-get -q update")


def server_versions(root: Path) -> list[str]:
    """Return the versions of MariaDB in the archive, the newest first."""
    lines = inside(root, "apt-cache madison mariadb-server").splitlines()
    return list(dict.fromkeys(line.split("|")[1].strip() for line in lines if "|" in line))


def install_server(root: Path) -> None:
    """Install MariaDB, and put the packages of a later version into /srv/upgrade."""
    versions = server_versions(root)
    if not versions:
        raise Unavailable("the archive has no mariadb-server")
    later = root / "srv/upgrade"
    later.mkdir()
    if len(versions) > 1:
        new, old = versions[0], versions[1]
        inside(root, f"apt-get -q -y install {' '.join(f'{name}={old}' for name in SERVER)}")
        changed = [
            name
            for name in inside(root, "dpkg-query -W -f '${Package} ${Version}\\n'").splitlines()
            if name.split()[1] == old
        ]
        names = " ".join(f"{line.split()[0]}={new}" for line in changed)
        inside(root, f"cd /srv/upgrade && apt-get -q download {names}")
        return
    inside(root, f"apt-get -q -y install {' '.join(SERVER)}")
    inside(root, f"cd /srv/upgrade && apt-get -q download {' '.join(CHANGED)}")
    for package in sorted(later.iterdir()):
        repacked(package)


def repacked(package: Path) -> None:
    """Give a package a later version, and nothing else."""
    parts = package.with_suffix("")
    run(["dpkg-deb", "-R", package, parts])
    control = parts / "DEBIAN/control"
    lines = control.read_text().splitlines()
    lines = [line + "+later1" if line.startswith("Version: ") else line for line in lines]
    control.write_text("\n".join(lines) + "\n")
    package.unlink()
    run(["dpkg-deb", "--root-owner-group", "-Zgzip", "-z1", "-b", parts, package])
    shutil.rmtree(parts)


def settle(root: Path) -> None:
    """Make it a host: its name, its disk, and the service that takes the tests' commands."""
    (root / "etc/hostname").write_text("stallscope-test\n")
    (root / "etc/hosts").write_text("127.0.0.1 localhost stallscope-test\n")
    (root / "etc/fstab").write_text("/dev/vda / ext4 noatime,errors=remount-ro 0 1\n")
    program = root / "usr/local/libexec/test-control"
    program.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(HERE / "control.py", program)
    program.chmod(0o755)
    shutil.copy(HERE / "test-control.service", root / "etc/systemd/system/test-control.service")
    inside(root, "systemctl enable test-control.service")
    (root / "usr/sbin/policy-rc.d").unlink()
    inside(root, "apt-get -q clean && rm -rf /var/lib/apt/lists/* && rm -f /etc/resolv.conf")


def build_image(release: Release, place: Path) -> None:
    root = place / "root"
    debootstrap(release, root)
    (root / "etc/initramfs-tools/conf.d").mkdir(parents=True)
    # Emulated, each second of unpacking is ten.
    (root / "etc/initramfs-tools/conf.d/tests").write_text("MODULES=list\n")
    (root / "etc/initramfs-tools/modules").write_text("".join(f"{name}\n" for name in INITRD))
    inside(root, f"apt-get -q -y install {' '.join(SYSTEM)}")
    install_server(root)
    settle(root)
    shutil.copy(max(root.glob("boot/vmlinuz-*")), place / "vmlinuz")
    shutil.copy(max(root.glob("boot/initrd.img-*")), place / "initrd.img")
    disk(root, place / "disk.ext4", IMAGE_BYTES)
    shutil.rmtree(root)


def disk(root: Path, file: Path, size: int) -> None:
    """Make a file system of a folder, without mounting it."""
    with file.open("wb") as out:
        out.truncate(size)
    run(["mkfs.ext4", "-q", "-F", "-d", root, file])


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


def recipe() -> str:
    files = (HERE / "systems.py", HERE / "control.py", HERE / "test-control.service")
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def build(number: str) -> None:
    """Make the image of a release, where it is not there yet."""
    release = RELEASES[number]
    once(
        folder(release),
        recipe(),
        lambda place: build_image(release, place),
        f"making an image of Debian {number} with MariaDB (300 MB from {ARCHIVE})",
    )
