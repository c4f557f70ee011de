# SPDX-License-Identifier: Apache-2.0
"""What takes the agent's captures: the probe, py-spy for Python, gdb where the user allowed it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec

from stallscope.agent.events import CaptureResult, ProbeStatus, Put
from stallscope.agent.probe_session import ProbeSession, ProbeSettings
from stallscope.base.errors import StallscopeError
from stallscope.base.text import one_line
from stallscope.base.threads import name_of_thread
from stallscope.collectors.triggers.engine import reader_of_counts
from stallscope.collectors.triggers.settings import AgentSettings
from stallscope.collectors.triggers.waiting import probe_options
from stallscope.model.capture import Capture

__all__ = [
    "CaptureBackend",
    "FallbackBackend",
    "ProbeBackend",
    "SerialBackend",
    "with_triggers",
]

_log = logging.getLogger(__name__)

LONGEST_INTERVAL = 10.0
LEAST_INTERVAL = 0.2
"""Seconds between captures that the probe takes by itself."""


class CaptureBackend(Protocol):
    """What takes the captures; it may also report waits."""

    @property
    def restarts(self) -> int: ...

    @property
    def takes_bursts(self) -> bool:
        """Return whether each of its files has all captures of a burst."""

    def start(self, pids: tuple[int, ...]) -> None: ...

    def follow(self, pids: tuple[int, ...]) -> None: ...

    def adapt(self, settings: AgentSettings) -> None: ...

    def use_layout(self, text: str) -> None:
        """Read connections from memory by this layout from now on; "" reads none."""

    def capture(self, key: str, path: Path) -> None:
        """Begin a capture; a CaptureResult with the key follows in every case."""

    def close(self) -> None: ...


class ProbeBackend(ProbeSession):
    """The probe, started with the options that the triggers need."""

    takes_bursts = True

    def __init__(
        self, probe: ProbeSettings, settings: AgentSettings, put: Put, *, always_on: bool = False
    ) -> None:
        """``always_on``: the wait programs stay attached, also where nothing waits."""
        super().__init__(with_triggers(probe, settings, always_on=always_on), put)
        self._always_on = always_on

    def adapt(self, settings: AgentSettings) -> None:
        """Use other triggers."""
        self.change(with_triggers(self.settings, settings, always_on=self._always_on))


def with_triggers(
    probe: ProbeSettings, settings: AgentSettings, *, always_on: bool = False
) -> ProbeSettings:
    """Return the options of the probe for these triggers; log why the wait programs must stay
    attached where nobody asked for that."""
    reader = None if always_on else reader_of_counts(settings)
    if reader is not None:
        trigger, name = reader
        _log.warning(
            "the wait programs stay attached: trigger %s reads %s, which is not counted at rest",
            trigger,
            name,
        )
    sleeps = [trigger.sleep for trigger in settings.triggers if trigger.wait is not None]
    return msgspec.structs.replace(
        probe,
        burst=settings.burst,
        at_rest=not always_on and reader is None,
        triggers=tuple(probe_options(settings.triggers)),
        # A wait for which no trigger would fire need not be captured.
        capture_interval=min([LONGEST_INTERVAL, *(max(LEAST_INTERVAL, s) for s in sleeps)]),
    )


class SerialBackend:
    """Takes one capture at a time by a slow function, in its own thread."""

    takes_bursts = False

    def __init__(self, take: Callable[[tuple[int, ...]], Capture], put: Put) -> None:
        self.restarts = 0
        self._take = take
        self._put = put
        self._pids: tuple[int, ...] = ()
        self._busy = threading.Lock()

    def start(self, pids: tuple[int, ...]) -> None:
        self.follow(pids)

    def follow(self, pids: tuple[int, ...]) -> None:
        """Capture these processes from now on."""
        self._pids = pids
        self._put(ProbeStatus(ready=True))

    def adapt(self, settings: AgentSettings) -> None:
        """Do nothing: it does not depend on the triggers."""

    def use_layout(self, text: str) -> None:
        """Do nothing: only the probe reads the server's memory."""

    def capture(self, key: str, path: Path) -> None:
        """Begin a capture; while another is being taken, this one fails."""
        if not self._busy.acquire(blocking=False):
            self._report(key, None, False, "the previous capture is still being taken")
            return
        name = name_of_thread("capture")
        threading.Thread(target=self._work, args=(key, path), name=name, daemon=True).start()

    def close(self) -> None:
        """Stop; a running capture continues until its deadline."""

    def _work(self, key: str, path: Path) -> None:
        from stallscope.model import capturefile

        try:
            capture = self._take(self._pids)
            capturefile.write(capture, path)
        except StallscopeError as error:
            self._report(key, None, False, str(error))
        except Exception as error:
            self._report(key, None, False, f"internal error: {type(error).__name__}: {error}")
        else:
            self._report(key, path, bool(capture.notes), None)
        finally:
            self._busy.release()

    def _report(self, key: str, path: Path | None, partial: bool, error: str | None) -> None:
        why = None if error is None else one_line(error)
        where = None if path is None else str(path)
        self._put(CaptureResult(where, time.monotonic_ns(), partial, key, error=why))


class FallbackBackend:
    """The probe, and another backend while the probe is not ready."""

    def __init__(self, probe: ProbeBackend, other: CaptureBackend) -> None:
        self._probe = probe
        self._other = other

    @property
    def restarts(self) -> int:
        """Return how often the probe was started again."""
        return self._probe.restarts

    @property
    def takes_bursts(self) -> bool:
        """Return whether the backend that works now takes bursts."""
        return self._probe.ready or self._other.takes_bursts

    def start(self, pids: tuple[int, ...]) -> None:
        self._other.start(pids)
        self._probe.start(pids)

    def follow(self, pids: tuple[int, ...]) -> None:
        self._other.follow(pids)
        self._probe.follow(pids)

    def adapt(self, settings: AgentSettings) -> None:
        self._probe.adapt(settings)

    def use_layout(self, text: str) -> None:
        self._probe.use_layout(text)

    def capture(self, key: str, path: Path) -> None:
        """Take the capture by the backend that works now."""
        (self._probe if self._probe.ready else self._other).capture(key, path)

    def close(self) -> None:
        self._other.close()
        self._probe.close()
