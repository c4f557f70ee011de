# SPDX-License-Identifier: Apache-2.0
"""Slack, or what speaks its incoming webhooks, such as Mattermost."""

from __future__ import annotations

from stallscope.notify import http
from stallscope.notify.alert import Alert, Event, facts, headline
from stallscope.notify.destinations.base import Base
from stallscope.notify.settings import SlackSettings, secret

__all__ = ["Slack"]

_LONGEST_SECTION = 3000
_SIGNS = {"critical": ":red_circle:", "warning": ":large_yellow_circle:"}


class Slack(Base[SlackSettings]):
    def __init__(self, settings: SlackSettings) -> None:
        super().__init__(settings)
        self._url = secret(settings, "url")

    def send(self, event: Event, alert: Alert) -> None:
        """Post a message."""
        over = event == "end"
        sign = ":white_check_mark:" if over else _SIGNS[alert.severity]
        head = f"{sign} {_escaped(headline(event, alert))}"
        lines = []
        for name, text in facts(alert):
            if name == "more":
                lines.append(f"<{alert.link}|the incident>")
            elif name in ("statement", "incident", "to end it"):
                lines.append(f"*{name}*: `{_escaped(text.replace('`', chr(39)))}`")
            else:
                lines.append(f"*{name}*: {_escaped(text)}")
        text = "\n".join(lines)[:_LONGEST_SECTION]
        blocks = [
            {"type": "section", "text": {"type": "mrkdwn", "text": f"*{head}*"}},
            {"type": "section", "text": {"type": "mrkdwn", "text": text}},
        ]
        verdict = alert.incident.verdict
        if verdict is not None and verdict.lines and not over:
            shown = _escaped("\n".join(verdict.lines).replace("```", "` ` `"))
            fenced = f"```\n{shown[: _LONGEST_SECTION - 10]}\n```"
            blocks.append({"type": "section", "text": {"type": "mrkdwn", "text": fenced}})
        value = {"text": head, "blocks": blocks}
        http.post_json(self._url, value, self.settings.deadline)


def _escaped(text: str) -> str:
    """Escape what Slack gives a meaning to; a statement must not mention @channel."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
