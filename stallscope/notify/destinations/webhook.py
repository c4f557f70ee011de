# SPDX-License-Identifier: Apache-2.0
"""A webhook: the incident as JSON, or a body of your own."""

from __future__ import annotations

import hashlib
import hmac
import logging
from typing import Any

import msgspec

from stallscope.base import extras, trust
from stallscope.base.encoding import to_json, utf8
from stallscope.base.errors import UsageError
from stallscope.base.text import one_line, without_surrogates
from stallscope.notify import http
from stallscope.notify.alert import Alert, Event, examples, facts, title
from stallscope.notify.destinations.base import Base
from stallscope.notify.settings import WebhookSettings, named, secret

__all__ = ["Webhook", "template_of"]

_log = logging.getLogger(__name__)

_MAX_TEMPLATE = 1 << 20
_MAX_BODY = 1 << 20
_LONGEST_KEY = 512


class Webhook(Base[WebhookSettings]):
    def __init__(self, settings: WebhookSettings) -> None:
        super().__init__(settings)
        self._url = secret(settings, "url")
        self._secret = secret(settings, "secret").encode()
        self._said = ""
        self._template = template_of(settings)

    def send(self, event: Event, alert: Alert) -> None:
        """Post the event."""
        body, content_type = self._body(event, alert)
        headers = {
            "Content-Type": content_type,
            "Idempotency-Key": f"{alert.key[:_LONGEST_KEY]}#{event}",
            **self.settings.headers,
        }
        if self._secret:
            made = hmac.new(self._secret, body, hashlib.sha256).hexdigest()
            headers["X-Stallscope-Signature"] = f"sha256={made}"
        http.post(self._url, body, headers, self.settings.deadline)

    def _body(self, event: Event, alert: Alert) -> tuple[bytes, str]:
        """Return the body and its type: of the template, or the built-in one where that fails."""
        value = _value(event, alert)
        if self._template is not None:
            try:
                return _rendered(self._template, value), self.settings.content_type
            except Exception as error:
                why = f"{self.settings.template} fails: {type(error).__name__}: {error}"
                if why != self._said:
                    _log.error(
                        "destination %s: template %s; the built-in body is sent instead",
                        self.name,
                        one_line(why),
                    )
                self._said = why
        return to_json(value), WebhookSettings().content_type


def template_of(settings: WebhookSettings) -> Any:
    """Return the template, tried with what an alert can lack; None: there is none.

    Raises: UsageError.
    """
    name, file = named(settings), settings.template
    if not file:
        return None
    extras.require("report", f"template of the destination {name}")
    import jinja2
    import jinja2.sandbox

    try:
        with open(trust.open_file(file), "rb") as opened:
            text = opened.read(_MAX_TEMPLATE).decode()
        environment = jinja2.sandbox.SandboxedEnvironment(
            undefined=jinja2.StrictUndefined, autoescape=False, keep_trailing_newline=True
        )
        template = environment.from_string(text)
    except trust.DistrustError as error:
        raise UsageError(f"destination {name}: template {error}") from error
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise UsageError(f"destination {name}: template {file}: {why}") from error
    except jinja2.TemplateError as error:
        line = getattr(error, "lineno", None)
        where = f"{file}:{line}" if line else file
        raise UsageError(f"destination {name}: template {where}: {error}") from error
    for event, alert, what in examples():
        try:
            _rendered(template, _value(event, alert))
        except Exception as error:
            raise UsageError(
                f"destination {name}: template {file} fails for {what}:"
                f" {one_line(str(error), 200)}; write {{{{ facts.NAME | default('') }}}} for"
                " what can be missing"
            ) from error
    return template


def _rendered(template: Any, value: dict[str, Any]) -> bytes:
    body = utf8(str(template.render(**value)))
    if len(body) > _MAX_BODY:
        raise ValueError(f"it makes more than {_MAX_BODY >> 20} MiB")
    return body


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
