# SPDX-License-Identifier: Apache-2.0
"""Mail by SMTP. The messages of a stall have one thread."""

from __future__ import annotations

import contextlib
import email.message
import email.utils
import hashlib
import smtplib
import socket
import ssl
import string

from stallscope.base import deadline
from stallscope.base.encoding import utf8
from stallscope.base.sending import SendError
from stallscope.notify.alert import Alert, Event, body, headline, title
from stallscope.notify.destinations.base import Base
from stallscope.notify.settings import MailSettings, secret

__all__ = ["Mail"]

_PERMANENT = 500
_DOMAIN = frozenset(string.ascii_letters + string.digits + ".-")


class _Smtp(smtplib.SMTP):
    """A connection within the deadline of its thread."""

    def _get_socket(self, host: str, port: int, timeout: float) -> socket.socket:
        return deadline.connect(host, port)


class _SmtpTls(_Smtp):
    def _get_socket(self, host: str, port: int, timeout: float) -> socket.socket:
        context = ssl.create_default_context()
        return context.wrap_socket(deadline.connect(host, port), server_hostname=host)


class Mail(Base[MailSettings]):
    def __init__(self, settings: MailSettings) -> None:
        super().__init__(settings)
        self._password = secret(settings, "password")

    def send(self, event: Event, alert: Alert) -> None:
        """Send a message."""
        settings = self.settings
        message = self._message(event, alert)
        reached = False
        try:
            with deadline.Deadline(settings.deadline), contextlib.closing(self._server()) as server:
                if settings.tls == "starttls":
                    server.starttls(context=ssl.create_default_context())
                reached = True
                if settings.user:
                    server.login(settings.user, self._password)
                server.send_message(message)
                # The message was taken: the goodbye changes nothing.
                with contextlib.suppress(OSError, smtplib.SMTPException):
                    server.quit()
        except smtplib.SMTPResponseException as error:
            said = error.smtp_error
            text = said.decode("utf-8", "backslashreplace") if isinstance(said, bytes) else said
            raise SendError(
                f"{settings.host} answers {error.smtp_code}: {text}",
                refused=error.smtp_code >= _PERMANENT,
                unreachable=not reached,
            ) from error
        except smtplib.SMTPRecipientsRefused as error:
            code, said = next(iter(error.recipients.values()))
            raise SendError(
                f"{settings.host} refuses {next(iter(error.recipients))}: {code}"
                f" {said.decode('utf-8', 'backslashreplace')}",
                refused=code >= _PERMANENT,
            ) from error
        except (OSError, smtplib.SMTPException) as error:
            raise SendError(
                f"{settings.host}:{settings.port}: {error}",
                unreachable=not reached or isinstance(error, TimeoutError),
            ) from error

    def _server(self) -> smtplib.SMTP:
        settings = self.settings
        kind = _SmtpTls if settings.tls == "tls" else _Smtp
        name = deadline.name_of_host()
        return kind(settings.host, settings.port, name, timeout=settings.deadline)

    def _message(self, event: Event, alert: Alert) -> email.message.EmailMessage:
        message = email.message.EmailMessage()
        over = event == "end"
        message["Subject"] = headline(event, alert)
        message["From"] = self.settings.sender or f"stallscope@{_domain(alert.host)}"
        message["To"] = ", ".join(self.settings.to)
        message["Date"] = email.utils.localtime()
        first = f"<{hashlib.sha256(utf8(alert.key)).hexdigest()[:32]}.{{}}@stallscope>"
        # The same at each attempt: a server that got it twice can see that.
        message["Message-ID"] = first.format(event)
        if event != "stall":
            message["In-Reply-To"] = message["References"] = first.format("stall")
        message["Auto-Submitted"] = "auto-generated"
        message["X-Priority"] = "1" if alert.severity == "critical" and not over else "3"
        message.set_content("\n".join([title(alert), "", *body(alert), ""]))
        return message


def _domain(host: str) -> str:
    """Return the name of a host as a mail address can have it."""
    return "".join(one if one in _DOMAIN else "-" for one in host) or "localhost"
