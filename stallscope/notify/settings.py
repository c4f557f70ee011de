# SPDX-License-Identifier: Apache-2.0
"""The settings of destinations: ``[[destination]]`` of the configuration, docs/notify.md.

A secret has two keys: ``token`` holds it, ``token-file`` names a file that does. A file without a
slash in its name is a credential of systemd (``LoadCredential=``).
"""

from __future__ import annotations

import re
import urllib.parse
from typing import Annotated, Literal

import msgspec

from stallscope.base import extras, secretfiles
from stallscope.base.text import one_line

__all__ = [
    "KINDS",
    "SECRETS",
    "AlertmanagerSettings",
    "AppriseSettings",
    "CommandDestination",
    "Destination",
    "MailSettings",
    "OpsgenieSettings",
    "PagerDutySettings",
    "Severity",
    "SlackSettings",
    "TeamsSettings",
    "WebhookSettings",
    "check",
    "check_url",
    "named",
    "secret",
]

Severity = Literal["warning", "critical"]

Seconds = Annotated[float, msgspec.Meta(gt=0, le=3600)]

SECRETS = ("url", "token", "routing-key", "api-key", "password", "secret")
"""Keys whose values are shown to nobody; a webhook's address often holds its password."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


class _Common(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab", tag_field="kind"
):
    name: str = ""
    """Names it in messages and metrics, and what it got in the outbox; its kind where there is
    none."""
    resolve: bool = True
    """Also notify of the end."""
    least_severity: Severity = "warning"
    deadline: Seconds = 30.0
    """Seconds for one attempt."""


class AlertmanagerSettings(_Common, frozen=True, tag="alertmanager"):
    url: str = ""
    """Of Alertmanager itself: ``http://alertmanager:9093``."""
    url_file: str = ""
    user: str = ""
    password: str = ""
    password_file: str = ""
    token: str = ""
    token_file: str = ""
    labels: dict[str, str] = {}
    """Labels in addition to those of the alert."""
    repeat: Annotated[float, msgspec.Meta(ge=1, le=3600)] = 60.0
    """Seconds after which an alert that fires is sent again: without that, Alertmanager takes it
    for resolved after its ``resolve_timeout``."""
    least_firing: Annotated[float, msgspec.Meta(ge=0, le=86400)] = 60.0
    """Seconds for which an alert fires at least. Alertmanager sends nothing for one that is
    resolved within its ``group_wait``."""


class PagerDutySettings(_Common, frozen=True, tag="pagerduty"):
    routing_key: str = ""
    """Integration key of an Events API v2 integration."""
    routing_key_file: str = ""
    url: str = "https://events.pagerduty.com/v2/enqueue"


class OpsgenieSettings(_Common, frozen=True, tag="opsgenie"):
    api_key: str = ""
    api_key_file: str = ""
    url: str = "https://api.opsgenie.com/v2/alerts"
    """In the EU: ``https://api.eu.opsgenie.com/v2/alerts``."""
    tags: list[str] = []
    teams: list[str] = []


class SlackSettings(_Common, frozen=True, tag="slack"):
    url: str = ""
    """Of an incoming webhook."""
    url_file: str = ""


class TeamsSettings(_Common, frozen=True, tag="teams"):
    url: str = ""
    """Of a workflow "When a Teams webhook request is received"."""
    url_file: str = ""


class MailSettings(_Common, frozen=True, tag="mail"):
    to: list[str] = []
    sender: str = ""
    """``stallscope@HOST`` where there is none."""
    host: str = "localhost"
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)] = 25
    tls: Literal["none", "starttls", "tls"] = "none"
    user: str = ""
    password: str = ""
    password_file: str = ""


class WebhookSettings(_Common, frozen=True, tag="webhook"):
    url: str = ""
    url_file: str = ""
    headers: dict[str, str] = {}
    secret: str = ""
    """Signs the body: ``X-Stallscope-Signature: sha256=HEX`` is its HMAC."""
    secret_file: str = ""
    template: str = ""
    """File with a Jinja template of the body; without one it is JSON."""
    content_type: str = "application/json"


class CommandDestination(_Common, frozen=True, tag="command"):
    run: list[str] = []
    """Path and arguments; no shell."""


class AppriseSettings(_Common, frozen=True, tag="apprise"):
    url: str = ""
    """One of the services of https://github.com/caronc/apprise: ``tgram://TOKEN/CHAT``."""
    url_file: str = ""


Destination = (
    AlertmanagerSettings
    | PagerDutySettings
    | OpsgenieSettings
    | SlackSettings
    | TeamsSettings
    | MailSettings
    | WebhookSettings
    | CommandDestination
    | AppriseSettings
)

KINDS = (
    "alertmanager",
    "pagerduty",
    "opsgenie",
    "slack",
    "teams",
    "mail",
    "webhook",
    "command",
    "apprise",
)

_NEEDED = {
    AlertmanagerSettings: ("url",),
    PagerDutySettings: ("routing_key",),
    OpsgenieSettings: ("api_key",),
    SlackSettings: ("url",),
    TeamsSettings: ("url",),
    MailSettings: ("to",),
    WebhookSettings: ("url",),
    CommandDestination: ("run",),
    AppriseSettings: ("url",),
}


def named(destination: Destination) -> str:
    """Return its name: that of the file, or its kind."""
    return destination.name or str(type(destination).__struct_config__.tag)


def check(destination: Destination) -> tuple[str, str] | None:
    """Return the first key that is wrong, and why; None: all are fine. Reads no file."""
    if destination.name and _NAME.fullmatch(destination.name) is None:
        return "name", "a name has letters, digits, - and _, at most 64"
    for key in _NEEDED[type(destination)]:
        if not getattr(destination, key) and not getattr(destination, f"{key}_file", ""):
            twin = f" or {_kebab(key)}-file" if hasattr(destination, f"{key}_file") else ""
            return _kebab(key), f"it is missing: write {_kebab(key)}{twin}"
    for key in destination.__struct_fields__:
        if key.endswith("_file") and getattr(destination, key):
            twin = key.removesuffix("_file")
            if getattr(destination, twin):
                return _kebab(key), f"give either {_kebab(twin)} or {_kebab(key)}, not both"
    url = getattr(destination, "url", "")
    if url and not isinstance(destination, AppriseSettings):
        why = check_url(url)
        if why is not None:
            return "url", why
    match destination:
        case CommandDestination(run=[program, *_]) if not program.startswith("/"):
            return "run", (
                f"{program!r} is not an absolute path; there is no shell to search for the program"
            )
        case AppriseSettings() if not extras.is_installed("apprise"):
            return "kind", (
                "it needs the Python package apprise, which is not installed:"
                f" {extras.how_to_install('apprise')}"
            )
        case WebhookSettings(headers=headers):
            for name, value in headers.items():
                if _HEADER.fullmatch(name) is None or not value.isprintable():
                    return "headers", f"{one_line(name, 60)!r} is no header of HTTP with its value"
        case MailSettings(to=to):
            for address in (*to, *([destination.sender] if destination.sender else ())):
                if "@" not in address or not address.isprintable() or " " in address:
                    return "to", f"{one_line(address, 80)!r} is no address of mail"
    return None


def check_url(text: str) -> str | None:
    """Return why it is no address of the web; None: it is one."""
    try:
        parts = urllib.parse.urlsplit(text)
        parts.port  # noqa: B018  # raises where the port is no number
    except ValueError as error:
        return str(error)
    if parts.scheme not in ("http", "https") or not parts.hostname or not text.isprintable():
        return "it is not a URL, write http://… or https://…"
    return None


def secret(destination: Destination, key: str) -> str:
    """Return a secret, from its file where the settings name one. Raises: UsageError."""
    file = getattr(destination, f"{key}_file", "")
    if not file:
        return str(getattr(destination, key))
    return secretfiles.line(file, f"destination {named(destination)}: {_kebab(key)}-file")


def _kebab(key: str) -> str:
    return key.replace("_", "-")
