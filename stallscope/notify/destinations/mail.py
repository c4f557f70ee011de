# SPDX-License-Identifier: Apache-2.0
"""Mail by SMTP. The messages of a stall have one thread."""

from __future__ import annotations

import contextlib
import email.message
import email.utils
import hashlib
import smtplib
import ssl

from stallscope.base.text import without_surrogates
from stallscope.notify.alert import Alert, Event, body, title
from stallscope.notify.destinations.base import Base
from stallscope.notify.receiver import SendError
from stallscope.notify.settings import MailSettings, secret

__all__ = ["Mail"]

_PERMANENT = 500


class Mail(Base[MailSettings]):
    def __init__(self, settings: MailSettings) -> None:
        super().__init__(settings)
        self._password = secret(settings, "password")

    def send(self, event: Event, alert: Alert) -> None:
        """Send a message."""
        settings = self.settings
        try:
            server = self._connected()
            try:
                if settings.tls == "starttls":
                    server.starttls(context=ssl.create_default_context())
                if settings.user:
                    server.login(settings.user, self._password)
                server.send_message(self._message(event, alert))
            finally:
                # The message was taken, or not: the goodbye changes nothing.
                with contextlib.suppress(OSError, smtplib.SMTPException):
                    server.quit()
        except smtplib.SMTPResponseException as error:
            said = error.smtp_error
            text = said.decode("utf-8", "backslashreplace") if isinstance(said, bytes) else said
            raise SendError(
                f"{settings.host} answers {error.smtp_code}: {text}",
                refused=error.smtp_code >= _PERMANENT,
            ) from error
        except smtplib.SMTPRecipientsRefused as error:
            code, said = next(iter(error.recipients.values()))
            raise SendError(
                f"{settings.host} refuses {next(iter(error.recipients))}: {code}"
                f" {said.decode('utf-8', 'backslashreplace')}",
                refused=code >= _PERMANENT,
            ) from error
        except (OSError, smtplib.SMTPException) as error:
            raise SendError(f"{settings.host}:{settings.port}: {error}") from error

    def _connected(self) -> smtplib.SMTP:
        settings = self.settings
        if settings.tls == "tls":
            context = ssl.create_default_context()
            return smtplib.SMTP_SSL(
                settings.host, settings.port, timeout=settings.deadline, context=context
            )
        return smtplib.SMTP(settings.host, settings.port, timeout=settings.deadline)

    def _message(self, event: Event, alert: Alert) -> email.message.EmailMessage:
        message = email.message.EmailMessage()
        over = event == "end"
        message["Subject"] = ("over: " if over else "") + title(alert)
        message["From"] = self.settings.sender or f"stallscope@{alert.host}"
        message["To"] = ", ".join(self.settings.to)
        message["Date"] = email.utils.localtime()
        first = f"<{hashlib.sha256(alert.key.encode()).hexdigest()[:32]}.{{}}@stallscope>"
        # The same at each attempt: a server that got it twice can see that.
        message["Message-ID"] = first.format(event)
        if over:
            message["In-Reply-To"] = message["References"] = first.format("stall")
        message["Auto-Submitted"] = "auto-generated"
        message["X-Priority"] = "1" if alert.severity == "critical" and not over else "3"
        message.set_content(without_surrogates("\n".join([title(alert), "", *body(alert), ""])))
        return message
