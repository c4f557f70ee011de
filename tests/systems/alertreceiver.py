# SPDX-License-Identifier: Apache-2.0
"""Takes what Alertmanager takes, on port 9093, and writes it down: ``alertreceiver.py FILE``."""

from __future__ import annotations

import http.server
import sys

__all__: list[str] = []


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with open(sys.argv[1], "ab") as file:
            file.write(self.path.encode() + b" " + body + b"\n")
        self.send_response(200)
        self.end_headers()


if __name__ == "__main__":
    http.server.HTTPServer(("127.0.0.1", 9093), Handler).serve_forever()
