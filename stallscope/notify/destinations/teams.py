# SPDX-License-Identifier: Apache-2.0
"""Microsoft Teams: an Adaptive Card, for the webhook of a workflow."""

from __future__ import annotations

from stallscope.notify import http
from stallscope.notify.alert import Alert, Event, facts, headline
from stallscope.notify.destinations.base import Base
from stallscope.notify.settings import TeamsSettings, secret

__all__ = ["Teams"]

_COLORS = {"critical": "attention", "warning": "warning"}


class Teams(Base[TeamsSettings]):
    def __init__(self, settings: TeamsSettings) -> None:
        super().__init__(settings)
        self._url = secret(settings, "url")

    def send(self, event: Event, alert: Alert) -> None:
        """Post a card."""
        over = event == "end"
        body: list[dict[str, object]] = [
            {
                "type": "TextBlock",
                "text": _plain(headline(event, alert)),
                "weight": "bolder",
                "size": "medium",
                "wrap": True,
                "color": "good" if over else _COLORS[alert.severity],
            },
            {
                "type": "FactSet",
                "facts": [
                    {"title": name, "value": _plain(text)}
                    for name, text in facts(alert)
                    if name != "more"
                ],
            },
        ]
        card: dict[str, object] = {
            "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
            "type": "AdaptiveCard",
            "version": "1.4",
            "body": body,
        }
        verdict = alert.incident.verdict
        if verdict is not None and verdict.lines and not over:
            shown = {
                "type": "TextBlock",
                "text": "\n\n".join(_plain(line) or " " for line in verdict.lines),
                "fontType": "monospace",
                "wrap": True,
            }
            card["body"] = [*body, shown]
        if alert.link is not None:
            action = {"type": "Action.OpenUrl", "title": "the incident", "url": alert.link}
            card["actions"] = [action]
        content_type = "application/vnd.microsoft.card.adaptive"
        value = {
            "type": "message",
            "attachments": [{"contentType": content_type, "content": card}],
        }
        http.post_json(self._url, value, self.settings.deadline)


def _plain(text: str) -> str:
    """Escape Markdown, of which the cards show links and emphasis."""
    return "".join(f"\\{char}" if char in "\\`*_[]()#" else char for char in text)
