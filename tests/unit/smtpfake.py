# SPDX-License-Identifier: Apache-2.0
"""A mail server that keeps what it gets."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Smtp", "smtp"]


class Smtp(socketserver.ThreadingTCPServer):
    """Takes mail, or refuses recipients."""

    allow_reuse_address = daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Smtp)
        self.mails: list[bytes] = []
        self.refuses: bytes | None = None


class _Smtp(socketserver.StreamRequestHandler):
    server: Smtp

    def handle(self) -> None:
        self.wfile.write(b"220 ready\r\n")
        while line := self.rfile.readline():
            word = line[:4].upper()
            if word == b"DATA":
                self.wfile.write(b"354 go on\r\n")
                lines = []
                while (text := self.rfile.readline()) != b".\r\n":
                    lines.append(text)
                self.server.mails.append(b"".join(lines))
            elif word == b"RCPT" and self.server.refuses is not None:
                self.wfile.write(self.server.refuses)
                continue
            self.wfile.write(b"250 fine\r\n")
            if word == b"QUIT":
                break


@contextmanager
def smtp() -> Iterator[Smtp]:
    """Run one until the block ends."""
    with Smtp() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
