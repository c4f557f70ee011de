# SPDX-License-Identifier: Apache-2.0
"""One module for each kind of destination."""

from __future__ import annotations

from stallscope.base.errors import UsageError
from stallscope.notify import settings as kinds
from stallscope.notify.receiver import Receiver

__all__ = ["make", "problem"]


def problem(settings: kinds.Destination) -> str | None:
    """Return what is wrong with the files that a destination needs, its secrets aside."""
    try:
        match settings:
            case kinds.WebhookSettings():
                from stallscope.notify.destinations import webhook

                webhook.template_of(settings)
            case kinds.CommandDestination():
                from stallscope.notify.destinations import command

                command.check_program(settings)
    except UsageError as error:
        return str(error)
    return None


def make(settings: kinds.Destination) -> Receiver:
    """Return the destination of these settings. Its module is imported here: TLS and mail take
    memory that an agent without them need not have. Raises: UsageError.
    """
    match settings:
        case kinds.AlertmanagerSettings():
            from stallscope.notify.destinations import alertmanager

            return alertmanager.Alertmanager(settings)
        case kinds.PagerDutySettings():
            from stallscope.notify.destinations import pagerduty

            return pagerduty.PagerDuty(settings)
        case kinds.OpsgenieSettings():
            from stallscope.notify.destinations import opsgenie

            return opsgenie.Opsgenie(settings)
        case kinds.SlackSettings():
            from stallscope.notify.destinations import slack

            return slack.Slack(settings)
        case kinds.TeamsSettings():
            from stallscope.notify.destinations import teams

            return teams.Teams(settings)
        case kinds.MailSettings():
            from stallscope.notify.destinations import mail

            return mail.Mail(settings)
        case kinds.WebhookSettings():
            from stallscope.notify.destinations import webhook

            return webhook.Webhook(settings)
        case kinds.CommandDestination():
            from stallscope.notify.destinations import command

            return command.Command(settings)
        case kinds.AppriseSettings():
            from stallscope.notify.destinations import apprise

            return apprise.AppriseService(settings)
