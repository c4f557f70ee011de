# SPDX-License-Identifier: Apache-2.0
"""Images of Debian with systemd and MariaDB, made by debootstrap from Debian's archive.

An image has what a database host has, and nothing of stallscope.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path
from typing import NamedTuple

from tests.support.cache import Unavailable, cache_folder
from tests.support.vm.roots import (
    ARCHIVE,
    MADE_OF,
    RELEASES,
    Release,
    debootstrap,
    inside,
    once,
    run,
)

__all__ = [
    "BOOTED",
    "Image",
    "build",
    "disk",
    "folder",
    "image",
    "missing",
    "repacked",
    "wanted",
]

HERE = Path(__file__).resolve().parent
IMAGE_BYTES = 6 << 30
"""Of the file system; the file is sparse."""
BOOTED = "booted"
"""File next to an image: a mark that it was booted once."""
TOOLS = ("debootstrap", "mkfs.ext4", "qemu-system-x86_64", "dpkg-deb", "unshare")


# What a host has that runs a database, and what the package depends on: a machine has no network.
SYSTEM = (
    "systemd-sysv",
    "dbus",
    "udev",
    "linux-image-amd64",
    "initramfs-tools",
    "apparmor",
    "procps",
    "python3",
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


def repacked(package: Path) -> Path:
    """Give a package a later version, and nothing else; return its new file."""
    parts = package.with_suffix("")
    run(["dpkg-deb", "-R", package, parts])
    control = parts / "DEBIAN/control"
    lines = control.read_text().splitlines()
    lines = [line + "+later1" if line.startswith("Version: ") else line for line in lines]
    control.write_text("\n".join(lines) + "\n")
    package.unlink()
    said = run(["dpkg-deb", "--root-owner-group", "-Zgzip", "-z1", "-b", parts, package.parent])
    shutil.rmtree(parts)
    return Path(said.rsplit("'", 2)[1])


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


def recipe() -> str:
    files = (
        HERE / "roots.py",
        HERE / "systems.py",
        HERE / "control.py",
        HERE / "test-control.service",
    )
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
