# SPDX-License-Identifier: Apache-2.0
"""Secrets that are not in a configuration itself: files, and credentials of systemd."""

from __future__ import annotations

import os
from pathlib import Path

from stallscope.base.errors import UsageError

__all__ = ["SecretFileError", "credentials", "line", "read"]

MAX_SECRET = 64 << 10


class SecretFileError(UsageError):
    """A secret cannot be read; ``why`` is without the path."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"cannot read {path}: {why}")
        self.why = why


def credentials() -> Path | None:
    """Return the folder of systemd's credentials (``LoadCredential=``); None: there are none."""
    folder = os.environ.get("CREDENTIALS_DIRECTORY")
    return Path(folder) if folder else None


def read(path: Path) -> str:
    """Return a file without the end of its line. Raises: SecretFileError."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_SECRET + 1)
        text = data.decode()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise SecretFileError(path, why) from error
    if len(data) > MAX_SECRET:
        raise SecretFileError(path, f"larger than {MAX_SECRET} bytes, which no secret is")
    return text.removesuffix("\n").removesuffix("\r")


def line(file: str, where: str) -> str:
    """Return the one line of a file that a setting names: a path, or, without a slash, a credential
    of systemd.

    ``where``: the setting, for messages: ``destination pager: token-file``. Raises: UsageError.
    """
    path = Path(file)
    if "/" not in file:
        folder = credentials()
        if folder is None:
            raise UsageError(
                f"{where} = {file!r} is a credential of systemd, and there are none here: write a"
                " path, or LoadCredential="
            )
        path = folder / file
    try:
        text = read(path).strip()
    except SecretFileError as error:
        raise UsageError(f"{where} {path} cannot be read: {error.why}") from error
    if not text or not text.isprintable():
        raise UsageError(f"{where} {path} must hold one line")
    return text
