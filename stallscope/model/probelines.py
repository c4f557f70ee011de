# SPDX-License-Identifier: Apache-2.0
"""What all lines of the probe have in common: a limit, a schema, and one line of error."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

from stallscope.base.errors import StallscopeError
from stallscope.base.text import one_line

__all__ = ["decode_line"]

T = TypeVar("T")


def decode_line(decode: Callable[[bytes], T], data: bytes, where: str, schema: str, most: int) -> T:
    """Decode a line of at most so many bytes. ``where`` names it in the error.

    Raises: StallscopeError saying what is wrong with it.
    """
    if len(data) > most:
        raise StallscopeError(f"{where}: longer than {most} bytes, which no line is")
    try:
        line = decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        shown = one_line(data[:60].decode("utf-8", "backslashreplace"), 60)
        raise StallscopeError(f"{where} is not {schema}: {error}: {shown}") from error
    found: str | None = getattr(line, "schema", None)
    if found is not None and found != schema:
        raise StallscopeError(
            f"{where} is {one_line(found, 40)!r}, and this stallscope reads {schema}:"
            " use probe and stallscope from the same build"
        )
    return line
