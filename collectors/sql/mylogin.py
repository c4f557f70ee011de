# SPDX-License-Identifier: Apache-2.0
"""``.mylogin.cnf``, as mysql_config_editor of MySQL 5.6 and later writes it.

Four bytes without meaning, 20 bytes of key, then for each line of an option file its length (four
bytes, little endian) and the line in AES-128-ECB with PKCS#7 padding. The key is in the file
itself: this hides a password from a reader's eye, not from a program.
"""

from __future__ import annotations

import struct

from stallscope.base.errors import UsageError

__all__ = ["KEY_BYTES", "decrypt"]

KEY_BYTES = 20
_UNUSED_BYTES = 4
_AES_BYTES = 16
MAX_LINE = 4096
"""The most bytes of cipher text: the clients' own limit."""


def decrypt(data: bytes) -> bytes:
    """Return the option file inside. Raises: UsageError where it is damaged or no such file."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    from cryptography.hazmat.primitives.padding import PKCS7

    at = _UNUSED_BYTES + KEY_BYTES
    if len(data) < at:
        raise UsageError("too short for a login file")
    # AES-128-ECB is the file's format, not a choice.
    cipher = Cipher(algorithms.AES(_real_key(data[_UNUSED_BYTES:at])), modes.ECB())  # noqa: S305
    lines = bytearray()
    while at < len(data):
        if len(data) - at < 4:
            raise UsageError("it ends in the middle of a line")
        (length,) = struct.unpack_from("<i", data, at)
        at += 4
        if not 0 < length <= MAX_LINE or length % _AES_BYTES or len(data) - at < length:
            raise UsageError(
                "a line has a length that cannot be: it is damaged, or not a login file"
            )
        decryptor = cipher.decryptor()
        plain = decryptor.update(data[at : at + length]) + decryptor.finalize()
        unpadder = PKCS7(128).unpadder()
        try:
            lines += unpadder.update(plain) + unpadder.finalize()
        except ValueError:
            raise UsageError(
                "a line cannot be decrypted: it is damaged, or not a login file"
            ) from None
        at += length
    return bytes(lines)


def _real_key(stored: bytes) -> bytes:
    """Fold the key of the file into one of AES."""
    key = bytearray(_AES_BYTES)
    for number, byte in enumerate(stored):
        key[number % _AES_BYTES] ^= byte
    return bytes(key)
