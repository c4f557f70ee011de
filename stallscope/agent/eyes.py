# SPDX-License-Identifier: Apache-2.0
"""What takes the agent's captures: the probe, py-spy for Python, gdb where the user said so."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from stallscope.agent.loop import Eye
from stallscope.agent.news import ProbeState, Put, Shot
from stallscope.agent.probe_session import ProbeSession, ProbeSettings
from stallscope.base.errors import StallscopeError
from stallscope.base.text import one_line
from stallscope.collectors.triggers.settings import AgentSettings
from stallscope.collectors.triggers.waiting import probe_options
from stallscope.model import Capture

__all__ = ["OneByOne", "ProbeEye", "WithFallback", "with_triggers"]


LONGEST_INTERVAL = 10.0
LEAST_INTERVAL = 0.2
"""Seconds between captures that the probe takes by itself."""


class ProbeEye(ProbeSession):
    """The probe, told what the triggers want."""

    def adapt(self, settings: AgentSettings) -> None:
        """Take other triggers."""
        self.change(with_triggers(self.settings, settings))


def with_triggers(probe: ProbeSettings, settings: AgentSettings) -> ProbeSettings:
    """Return what the probe is asked for the sake of these triggers."""
    sleeps = [trigger.sleep for trigger in settings.triggers if trigger.wait is not None]
    return msgspec.structs.replace(
        probe,
        triggers=tuple(probe_options(settings.triggers)),
        # What no trigger would fire for, need not be captured either.
        capture_interval=min([LONGEST_INTERVAL, *(max(LEAST_INTERVAL, s) for s in sleeps)]),
    )


class OneByOne:
    """Takes a capture at a time by a function that may take long, in a thread of its own."""

    def __init__(self, take: Callable[[tuple[int, ...]], Capture], put: Put) -> None:
        self.restarts = 0
        self._take = take
        self._put = put
        self._pids: tuple[int, ...] = ()
        self._turn = threading.Lock()

    def start(self, pids: tuple[int, ...]) -> None:
        self.follow(pids)

    def follow(self, pids: tuple[int, ...]) -> None:
        """Capture these processes from now on."""
        self._pids = pids
        self._put(ProbeState(ready=True))

    def adapt(self, settings: AgentSettings) -> None:
        """Nothing in it depends on the triggers."""

    def snap(self, key: str, path: Path) -> None:
        """Begin a capture; while another is being taken, this one fails."""
        if not self._turn.acquire(blocking=False):
            self._answer(key, None, False, "the capture before is still being taken")
            return
        threading.Thread(target=self._work, args=(key, path), name="capture", daemon=True).start()

    def close(self) -> None:
        """A capture that is being taken is left behind; its deadline ends it."""

    def _work(self, key: str, path: Path) -> None:
        from stallscope import capturefile

        try:
            capture = self._take(self._pids)
            capturefile.write(capture, path)
        except StallscopeError as error:
            self._answer(key, None, False, str(error))
        except Exception as error:
            self._answer(key, None, False, f"internal error: {type(error).__name__}: {error}")
        else:
            self._answer(key, path, bool(capture.notes), None)
        finally:
            self._turn.release()

    def _answer(self, key: str, path: Path | None, partial: bool, error: str | None) -> None:
        said = None if error is None else one_line(error)
        where = None if path is None else str(path)
        self._put(Shot(where, time.monotonic_ns(), partial, key, error=said))


class WithFallback:
    """The probe, and something else while it is not ready."""

    def __init__(self, probe: ProbeEye, other: Eye) -> None:
        self._probe = probe
        self._other = other

    @property
    def restarts(self) -> int:
        """Return how often the probe was started again."""
        return self._probe.restarts

    def start(self, pids: tuple[int, ...]) -> None:
        self._other.start(pids)
        self._probe.start(pids)

    def follow(self, pids: tuple[int, ...]) -> None:
        self._other.follow(pids)
        self._probe.follow(pids)

    def adapt(self, settings: AgentSettings) -> None:
        self._probe.adapt(settings)

    def snap(self, key: str, path: Path) -> None:
        """Take it by what works now."""
        (self._probe if self._probe.ready else self._other).snap(key, path)

    def close(self) -> None:
        self._other.close()
        self._probe.close()
