# SPDX-License-Identifier: Apache-2.0
"""Find and run ``stallscope-probe``, the one program that may read other processes, and
``stallscope-poke``, the one that may write to them."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from stallscope.base import package, trust
from stallscope.base.childenv import child_environment
from stallscope.base.errors import StallscopeError, UsageError
from stallscope.base.text import one_line
from stallscope.collectors.programs import LEAVE_SECONDS

__all__ = [
    "POKE",
    "PROBE",
    "ProbeError",
    "ProbeMissingError",
    "built",
    "end",
    "failure",
    "find",
    "run",
    "start",
    "with_path",
]

PROBE = "stallscope-probe"
POKE = "stallscope-poke"
_TERM_SECONDS = 3.0
"""Seconds that the probe has for ending cleanly when it is asked to."""
_KEEP_SECONDS = 10.0
"""The same, for writing what it has."""

_CAPABILITIES = "cap_bpf,cap_perfmon,cap_sys_ptrace,cap_checkpoint_restore"
"""The capabilities that the backend bpf needs: it is the best one."""

# Words of the probe's advice that name options, with those of this command line.
_WORDS = (
    (f"{PROBE} --help", "`stallscope snap --help`"),
    (f"{POKE} --help", "`stallscope poke --help`"),
    ("--force runs it", "--force-kernel runs it"),
)


class ProbeError(StallscopeError):
    """The probe said in one line why it could not do it."""


class ProbeMissingError(StallscopeError):
    """There is no probe to run."""


def find(program: str = PROBE) -> Path:
    """Return the program: $STALLSCOPE_PROBE (or _POKE), the checkout's build, the package's own,
    PATH."""
    variable = program.upper().replace("-", "_")
    named = os.environ.get(variable)
    if named:
        path = Path(named)
        if not _is_program(path):
            raise ProbeMissingError(f"{variable}={named}: no program there; unset it, or build")
        why = trust.reason(path, named=True)
        if why is not None:
            raise ProbeMissingError(f"{variable}: {why}")
        return path
    candidates = [*built(program, f"pmp/{program}"), package.FOLDER / "_bin" / program]
    for path in candidates:
        if _is_program(path):
            return path
    on_path = trust.find_program(program)
    if on_path is not None:
        return Path(on_path)
    for path in candidates:
        if path.is_file():
            raise ProbeMissingError(f"{path}: you may not run it: do this as root")
    raise ProbeMissingError(
        f"{program} not found: run ./scripts/setup, or meson setup build &&"
        f" meson compile -C build, or set {variable}"
    )


def built(*names: str) -> list[Path]:
    """Return the files of these names in a checkout's builds: ``build`` first, then the newest."""
    checkout = package.checkout()
    if checkout is None:
        return []
    found = [path for name in names for path in checkout.glob(f"build*/{name}")]
    newest = sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)
    return sorted(newest, key=lambda path: "build" not in path.relative_to(checkout).parts)


def _is_program(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def run(
    args: Sequence[str],
    *,
    seconds: float,
    stdin: bytes | None = None,
    partial: bool = True,
    program: str = PROBE,
    keeps: bool = False,
) -> bytes:
    """Run the probe, or another ``program`` of ours, and return its standard output.

    ``seconds`` is the deadline for everything. With ``partial``, exit code 3 (partly done) is a
    success: the output says what is missing. ``keeps``: on Ctrl-C it ends early, and what it has by
    then is returned.
    """
    probe = find(program)
    process = start(probe, args, stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE)
    try:
        out, err = process.communicate(stdin, timeout=seconds)
    except subprocess.TimeoutExpired:
        end(process)
        raise ProbeError(
            f"{program} {args[0] if args else ''} took more than {seconds:g} s and was ended;"
            " give a longer --deadline"
        ) from None
    except BaseException as error:  # also for Ctrl-C: the probe must not keep running
        if not (keeps and isinstance(error, KeyboardInterrupt)):
            end(process)
            raise
        out, err = _rest(process)
    if process.returncode == 0 or (partial and process.returncode == 3):
        return out
    raise failure(process.returncode, err, probe, program)


def _rest(process: subprocess.Popen[bytes]) -> tuple[bytes, bytes]:
    """Return the output of a probe that is to end. Raises: KeyboardInterrupt, where it has none."""
    try:
        process.terminate()  # a terminal's Ctrl-C is for both, a signal for one
        out, err = process.communicate(timeout=_KEEP_SECONDS)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        end(process)
        raise KeyboardInterrupt from None
    if not out:
        raise KeyboardInterrupt
    return out, err


def start(
    probe: Path, args: Sequence[str], *, stdin: int, own_session: bool = False
) -> subprocess.Popen[bytes]:
    """Start the probe with pipes for its output; ``stdin`` as for Popen."""
    try:
        return subprocess.Popen(
            [str(probe), *args],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=child_environment(),
            start_new_session=own_session,
        )
    except OSError as error:
        raise ProbeMissingError(f"cannot run {probe}: {error.strerror or error}") from error


def failure(code: int, err: bytes, probe: Path, program: str = PROBE) -> StallscopeError:
    """Return the error for a probe that ended with this code and this text on stderr."""
    message = _message(code, err, program)
    if program == PROBE:  # the other one is not given capabilities
        message = _with_advice(message, probe)
    return UsageError(message) if code == 2 else ProbeError(message)


def end(process: subprocess.Popen[bytes]) -> None:
    """Ask the probe to end, so that it detaches from its target cleanly; then kill it. One that
    waits for a disk that does not answer is left behind."""
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        process.communicate(timeout=_TERM_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=LEAVE_SECONDS)
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


def _with_advice(message: str, probe: Path) -> str:
    """Return what to type where a capability is missing."""
    if "CAP_SYS_PTRACE" not in message or "setcap" in message:
        return with_path(message, probe)
    if os.geteuid() == 0:
        return f"{message}; root may not either if it has fewer capabilities than that process"
    more = ",cap_dac_read_search" if "CAP_DAC_READ_SEARCH" in message else ""
    return f"{message}; run it as root, or setcap {_CAPABILITIES}{more}+ep {probe}"


def with_path(advice: str, probe: Path) -> str:
    """Put the whole path into the probe's advice: setcap does not search PATH."""
    return advice.replace(f"+ep {PROBE}", f"+ep {probe}")


def _message(code: int, err: bytes, program: str) -> str:
    """Return the probe's own error line, or a general one."""
    lines = [line for line in err.decode("utf-8", "backslashreplace").splitlines() if line.strip()]
    if lines:
        line = lines[-1].removeprefix(f"{program}: ")
        for theirs, ours in _WORDS:
            line = line.replace(theirs, ours)
        return one_line(line)
    if code < 0:
        return f"{program} was killed by signal {-code}; try again, or another --backend"
    return f"{program} failed with exit code {code} without a message"
