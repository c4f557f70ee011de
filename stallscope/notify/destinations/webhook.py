# SPDX-License-Identifier: Apache-2.0
"""A webhook: the incident as JSON, or a body of your own."""

from __future__ import annotations

import hashlib
import hmac
from typing import Any

import msgspec

from stallscope.base import extras, trust
from stallscope.base.errors import UsageError
from stallscope.base.text import without_surrogates
from stallscope.notify import http
from stallscope.notify.alert import Alert, Event, facts, title
from stallscope.notify.destinations.base import Base
from stallscope.notify.settings import WebhookSettings, secret

__all__ = ["Webhook"]

_MAX_TEMPLATE = 1 << 20
_MAX_BODY = 1 << 20


class Webhook(Base[WebhookSettings]):
    def __init__(self, settings: WebhookSettings) -> None:
        super().__init__(settings)
        self._url = secret(settings, "url")
        self._secret = secret(settings, "secret").encode()
        self._template = self._loaded(settings.template) if settings.template else None

    def send(self, event: Event, alert: Alert) -> None:
        """Post the event."""
        value = _value(event, alert)
        if self._template is None:
            body = msgspec.json.encode(value)
        else:
            body = str(self._template.render(**value))[:_MAX_BODY].encode()
        headers = {
            "Content-Type": self.settings.content_type,
            "Idempotency-Key": f"{alert.key}#{event}",
            **self.settings.headers,
        }
        if self._secret:
            made = hmac.new(self._secret, body, hashlib.sha256).hexdigest()
            headers["X-Stallscope-Signature"] = f"sha256={made}"
        http.post(self._url, body, headers, self.settings.deadline)

    def _loaded(self, file: str) -> Any:
        extras.require("report", f"template of the destination {self.name}")
        import jinja2
        import jinja2.sandbox

        try:
            with open(trust.open_file(file), "rb") as opened:
                text = opened.read(_MAX_TEMPLATE).decode()
            environment = jinja2.sandbox.SandboxedEnvironment(
                undefined=jinja2.StrictUndefined, autoescape=False, keep_trailing_newline=True
            )
            return environment.from_string(text)
        except trust.DistrustError as error:
            raise UsageError(f"destination {self.name}: template {error}") from error
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "it is no text"
            raise UsageError(f"destination {self.name}: template {file}: {why}") from error
        except jinja2.TemplateError as error:
            line = getattr(error, "lineno", None)
            where = f"{file}:{line}" if line else file
            raise UsageError(f"destination {self.name}: template {where}: {error}") from error


def _value(event: Event, alert: Alert) -> dict[str, Any]:
    value: dict[str, Any] = msgspec.to_builtins(
        {
            "event": event,
            "key": alert.key,
            "severity": alert.severity,
            "host": alert.host,
            "title": title(alert),
            "facts": dict(facts(alert)),
            "path": alert.path,
            "link": alert.link,
            "incident": alert.incident,
        }
    )
    plain: dict[str, Any] = without_surrogates(value)
    return plain
