# SPDX-License-Identifier: Apache-2.0
"""Bring the packages of a package-lock.json, as ``npm ci --ignore-scripts`` does, without npm.

Debian's npm is 400 packages. What is needed of it is to download what the lock names and to
check it against the lock's sha512.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import sys
import tarfile
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

__all__ = ["PackagesError", "install"]

REGISTRY = "https://registry.npmjs.org"
SECONDS = 60
MAX_BYTES = 64 << 20
"""Of one package, packed; of what it unpacks to, eight times as much."""


class PackagesError(Exception):
    """A package could not be had, or is not what the lock says."""


def install(lock: Path, folder: Path) -> None:
    """Unpack each locked package to ``folder`` (``node_modules/...``).

    Packages for other systems than Linux on x86-64 are left out. NPM_CONFIG_REGISTRY names
    another registry. Raises: PackagesError.
    """
    packages: dict[str, dict[str, Any]] = json.loads(lock.read_text("utf-8"))["packages"]
    for path, about in packages.items():
        if not path or not _is_for_here(about):
            continue
        name = path.rpartition("node_modules/")[2]
        data = _download(_address(name, about))
        _check(name, data, about["integrity"])
        _unpack(name, data, folder / path)


def _is_for_here(about: dict[str, Any]) -> bool:
    return "linux" in about.get("os", ["linux"]) and "x64" in about.get("cpu", ["x64"])


def _address(name: str, about: dict[str, Any]) -> str:
    if "resolved" in about:
        return str(about["resolved"])
    registry = os.environ.get("NPM_CONFIG_REGISTRY", REGISTRY).rstrip("/")
    return f"{registry}/{name}/-/{name.rpartition('/')[2]}-{about['version']}.tgz"


def _download(address: str) -> bytes:
    if not address.startswith("https://"):
        raise PackagesError(f"{address}: packages are taken by https alone")
    try:
        with urllib.request.urlopen(address, timeout=SECONDS) as answer:
            data: bytes = answer.read(MAX_BYTES + 1)
    except (urllib.error.URLError, OSError) as error:
        raise PackagesError(f"{address}: {getattr(error, 'reason', error)}") from error
    if len(data) > MAX_BYTES:
        raise PackagesError(f"{address}: more than {MAX_BYTES >> 20} MB")
    return data


def _check(name: str, data: bytes, integrity: str) -> None:
    kind, _, wanted = integrity.partition("-")
    if kind != "sha512":
        raise PackagesError(f"{name}: the lock has no sha512 of it")
    if base64.b64encode(hashlib.sha512(data).digest()).decode() != wanted:
        raise PackagesError(f"{name}: what the registry gave is not what the lock names")


def _write(folder: Path, path: str, content: bytes, *, executable: bool) -> None:
    """Write one file of a package, which lies in the folder whatever its name says.

    Python before 3.11.4 (Debian 12 has 3.11.2) has no filters for ``tarfile.extract``.
    """
    file = folder / path
    if not file.resolve().is_relative_to(folder.resolve()):
        raise PackagesError(f"{path}: it would be outside of the package's folder")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    file.chmod(0o755 if executable else 0o644)


def _unpack(name: str, data: bytes, folder: Path) -> None:
    """Unpack the one folder that a package is, whatever that is called."""
    try:
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            left = 8 * MAX_BYTES
            for member in archive:
                left -= member.size
                if left < 0:
                    raise PackagesError(f"{name}: it unpacks to too much")
                _, _, path = member.name.partition("/")
                content = archive.extractfile(member) if member.isfile() and path else None
                if content is not None:
                    _write(folder, path, content.read(), executable=bool(member.mode & 0o100))
    except (tarfile.TarError, OSError) as error:
        raise PackagesError(f"{name}: cannot unpack it: {error}") from error


def main() -> int:
    """Install the packages of LOCK in FOLDER."""
    lock, folder = sys.argv[1:]
    try:
        install(Path(lock), Path(folder))
    except (PackagesError, OSError) as error:
        print(f"npmpackages: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
