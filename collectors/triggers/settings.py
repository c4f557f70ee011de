# SPDX-License-Identifier: Apache-2.0
"""The settings of the triggers file: docs/triggers.md, key by key."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from stallscope.fleet.settings import ShipSettings
from stallscope.notify.settings import Destination

__all__ = [
    "AgentSettings",
    "BurstSettings",
    "CommandSettings",
    "CommonSettings",
    "HookSettings",
    "NotifySettings",
    "StorageSettings",
    "TriggerSettings",
]

Seconds = Annotated[float, msgspec.Meta(ge=0, le=86400 * 366)]
Cycles = Annotated[int, msgspec.Meta(ge=1, le=100_000)]
ByteCount = Annotated[int, msgspec.Meta(ge=0)]


class _Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """Keys are written with hyphens, as pt-stalk's options are."""


class TriggerSettings(_Settings, frozen=True):
    """One ``[[trigger]]``.

    It reads ``variable`` (an expression that is compared with ``threshold``, or a condition that
    has none), or ``wait``, which the wait programs report.
    """

    name: str
    about: str = ""
    """What it detects, for people."""
    enabled: bool = True
    variable: str | None = None
    threshold: float | str | None = None
    """A number or an expression. Of a wait: milliseconds."""
    when: Literal["above", "below"] = "above"
    clear: float | str | None = None
    """The value at which it is over; the threshold where there is none."""
    cycles: Cycles = 5
    """Samples in a row that must be breached."""
    clear_cycles: Cycles = 5
    interval: Seconds = 1.0
    """Least seconds between two samples."""
    sleep: Seconds = 300.0
    """Seconds after it fired in which it does not fire again."""
    run_time: Seconds = 30.0
    """Seconds in which the recovery is recorded, after it is over."""
    wait: str | None = None
    """Kind of stallscope.waits/1, or a group: ``lock``, ``sync``, ``space``, ``io``."""
    convoy: Annotated[int, msgspec.Meta(ge=2, le=1_000_000)] | None = None
    """Of a wait: threads that wait for the same."""


class CommandSettings(_Settings, frozen=True):
    """One ``[[command]]``: a program that prints a number, ``command("name")`` in expressions."""

    name: str
    run: Annotated[list[str], msgspec.Meta(min_length=1)]
    """Path and arguments; no shell."""
    interval: Annotated[float, msgspec.Meta(ge=0.05, le=86400)] = 1.0
    deadline: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 1.0


class HookSettings(_Settings, frozen=True):
    """``[plugin]``: commands that are run at points of the agent's life, as pt-stalk's hooks."""

    before_stalk: list[str] = []
    before_collect: list[str] = []
    after_collect: list[str] = []
    after_stalk: list[str] = []
    deadline: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 10.0


class NotifySettings(_Settings, frozen=True):
    """``[notify]``: how notifications are made, and the simplest destinations."""

    command: list[str] = []
    webhook: str | None = None
    deadline: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 30.0
    """Of the command and the webhook here."""
    hold: Annotated[float, msgspec.Meta(ge=0, le=60)] = 2.0
    """Seconds that a notification waits for the verdict."""
    critical_threads: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 20
    """A stall of so many threads is critical."""
    link: str = ""
    """Address of an incident for people; ``{id}`` stands for its id."""


class BurstSettings(_Settings, frozen=True):
    """``[burst]``: the captures of one stall, of which its verdict is drawn."""

    captures: Annotated[int, msgspec.Meta(ge=1, le=100)] = 20
    interval: Annotated[float, msgspec.Meta(ge=0.01, le=60)] = 0.03
    """Seconds from start to start."""


class StorageSettings(_Settings, frozen=True):
    """``[storage]``: old logs that are dropped from the page cache; none by default."""

    uncache: list[Literal["binlog", "relay", "redo"]] = []
    """Classes of files (stallscope.model.storagecache)."""
    every_minutes: Annotated[float, msgspec.Meta(ge=1, le=10_080)] = 30.0
    keep: str = ""
    """What stays of each log: ``2`` files, ``1G``, ``2h``; nothing by default."""
    allow_redo: bool = False


class CommonSettings(_Settings, frozen=True):
    """The settings at the top of the file that need no further processing."""

    poll_interval: Annotated[float, msgspec.Meta(ge=0.05, le=60)] = 1.0
    """Seconds between samples: 0.05 is 20 Hz."""
    retention_time: Annotated[float, msgspec.Meta(ge=0)] = 30.0
    """Days that incidents are kept; 0: forever."""
    retention_count: Annotated[int, msgspec.Meta(ge=0)] = 0
    """How many incidents are kept; 0: no limit."""
    disk_pct_free: Annotated[float, msgspec.Meta(ge=0, le=100)] = 5.0
    captures_an_hour: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 60
    """For all triggers together; each capture of a burst counts."""


class AgentSettings(CommonSettings, frozen=True):
    """All settings, with the defaults resolved."""

    retention_size: ByteCount = 0
    """Bytes of all kept incidents, of which there is at least one; 0: no limit."""
    disk_bytes_free: ByteCount = 100 << 20
    """Bytes that must stay free where incidents are stored."""
    burst: BurstSettings = BurstSettings()
    plugin: HookSettings = HookSettings()
    notify: NotifySettings = NotifySettings()
    storage: StorageSettings = StorageSettings()
    ship: ShipSettings = ShipSettings()
    commands: tuple[CommandSettings, ...] = ()
    destinations: tuple[Destination, ...] = ()
    """Each name once."""
    triggers: tuple[TriggerSettings, ...] = ()
    """Those that are enabled, each name once."""
