# SPDX-License-Identifier: Apache-2.0
"""chDB, today's ClickHouse as a library, behind the part of ClickHouse's HTTP that we use.

``python -m tests.support.fleet.chdbserver FOLDER`` prints its port, and runs until its input ends:
the library has threads and handlers of signals of its own, and stays out of the tests' process.
"""

from __future__ import annotations

import gzip
import re
import sys
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from backports import zstd
from chdb import session

__all__ = ["main"]

_NO_SETTINGS = {"database", "wait_end_of_query", "query", "readonly"}
"""There are no accounts, and a session that is read-only stays so."""
_UNPACK = {"gzip": gzip.decompress, "zstd": zstd.decompress}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    engine: Any
    lock = threading.Lock()

    def do_POST(self) -> None:
        query = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(self.path).query))
        body = self.rfile.read(int(self.headers["Content-Length"]))
        unpack = _UNPACK.get(self.headers.get("Content-Encoding", ""), bytes)
        sql = unpack(body).decode("utf-8", "replace")
        settings = {name: value for name, value in query.items() if name not in _NO_SETTINGS}
        try:
            with self.lock:
                self.engine.query(f"USE {query.get('database', 'default')}")
                for name, value in settings.items():
                    self.engine.query(f"SET {name} = '{value}'")
                answer = self.engine.query(sql, "TabSeparated")
                self._answer(200, answer.bytes() or b"")
        except Exception as error:
            found = re.search(r"Code: (\d+)", str(error))
            code = {"X-ClickHouse-Exception-Code": found[1]} if found else {}
            self._answer(500, str(error).encode(), code)

    def _answer(self, status: int, body: bytes, headers: dict[str, str] = {}) -> None:  # noqa: B006
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


def main() -> None:
    start: Any = session.Session  # it has no types
    Handler.engine = start(sys.argv[1])
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_port, flush=True)
    sys.stdin.buffer.read()


if __name__ == "__main__":
    main()
