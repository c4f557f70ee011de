# SPDX-License-Identifier: Apache-2.0
"""Any of the services that the library Apprise knows. Each message is sent by a process of its own:
the library keeps no deadline, and a process can be ended.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys

import msgspec

from stallscope.base import extras
from stallscope.base.encoding import to_json
from stallscope.base.errors import UsageError
from stallscope.base.package import module_command
from stallscope.base.sending import SendError
from stallscope.notify.alert import Alert, Event, body, headline
from stallscope.notify.destinations.base import Base
from stallscope.notify.settings import AppriseSettings, secret

__all__ = ["AppriseService", "Message", "main"]

_NOT_SENT = 1


class Message(msgspec.Struct, frozen=True):
    """What the process sends."""

    url: str
    title: str
    body: str
    kind: str


class AppriseService(Base[AppriseSettings]):
    def __init__(self, settings: AppriseSettings) -> None:
        super().__init__(settings)
        extras.require("apprise", f"destination {self.name}")
        import apprise

        self._url = secret(settings, "url")
        if not apprise.Apprise().add(self._url):
            raise UsageError(f"destination {self.name}: Apprise knows no service with this url")

    def send(self, event: Event, alert: Alert) -> None:
        """Send a message."""
        over = event == "end"
        text = "\n".join(body(alert))
        kind = "success" if over else "failure" if alert.severity == "critical" else "warning"
        head = headline(event, alert)
        argv, environment = module_command(__name__)
        try:
            done = subprocess.run(
                argv,
                input=to_json(Message(self._url, head, text, kind)),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment,
                timeout=self.settings.deadline,
                check=False,
            )
        except subprocess.TimeoutExpired:
            # Which of its services hangs, and where, is not known.
            raise SendError(
                f"Apprise: timed out after {self.settings.deadline:g} s", unreachable=True
            ) from None
        except OSError as error:
            raise SendError(f"cannot run Apprise: {error.strerror}") from error
        if done.returncode != 0:
            raise SendError("Apprise could not deliver it")


def main() -> int:
    """Send the message of the standard input (the process)."""
    import apprise

    message = msgspec.json.decode(sys.stdin.buffer.read(), type=Message)
    service = apprise.Apprise()
    with contextlib.suppress(Exception):
        service.add(message.url)
        if service.notify(title=message.title, body=message.body, notify_type=message.kind):
            return 0
    return _NOT_SENT


if __name__ == "__main__":
    sys.exit(main())
