# SPDX-License-Identifier: Apache-2.0
"""The command line; the one place that prints errors."""

from __future__ import annotations

import argparse
import errno
import io
import os
import re
import sys
from collections.abc import Collection, Sequence
from typing import Any, NoReturn

from stallscope.base.errors import Exit, StallscopeError, UsageError
from stallscope.base.subcommands import Command, add_command
from stallscope.base.text import one_line

__all__ = ["COMMANDS", "command_module", "entry_point", "main", "parser"]

COMMANDS = {
    "snap": "take a burst of captures of a live server and name its stall",
    "waits": "show what a live server waits for: locks, fsync, fallocate, files",
    "top": "show a live server on one screen: threads, who waits on what, locks, files",
    "watch": "run the agent: watch a server continuously and record its stalls",
    "agents": "show all agents of this host: what each watches, and what it lacks",
    "cron": "run the agent once for a limited time, for cron",
    "history": "show what a server's threads did in the last minutes, second by second",
    "analyze": "name the stall in saved captures and stack dumps of other tools",
    "report": "write captures, an incident or a comparison as one HTML file",
    "diff": "show what changed between two captures or two sets of captures",
    "incidents": "list the incidents in the store, with their verdicts",
    "fleet": "show the stalls of all servers in one place, and send incidents there",
    "export": "convert captures and incidents to formats of other tools",
    "status": "explain a server's status variables and flag abnormal values",
    "storage": "show what durability costs, where the bytes go, and what the cache holds",
    "memory": "show which code made a server's memory grow",
    "poke": "change one listed variable in a live server's memory, and undo it",
    "calibrate": "learn where this build of a server keeps connections in its memory",
    "symbolize": "add function names to a capture from debug files, by build-id",
    "pack": "make packs: names and layouts of programs, for hosts without debug files",
    "signatures": "show the signature catalog, or check a signature file",
    "triggers": "show the agent's triggers, or check a trigger file",
    "notify": "send a test notification to each destination",
    "config": "check the agent's configuration files, or show their settings",
    "completion": "print a shell completion script",
    "run": "start a server with the in-process library, where BPF and ptrace are not permitted",
    "inproc": "show and configure in-process libraries of running servers",
    "doctor": "check what works on this host, and how to fix what does not",
    "version": "show the versions of all parts: program, probe, signatures, formats, libraries",
}
"""Each has a module of its name in stallscope.commands; ``command_module`` imports one."""

EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells have it
_OF_WRITING = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})

_WRONG = re.compile(
    r"argument COMMAND: invalid choice: '(?P<choice>[^']{1,60})'"
    r"|^unrecognized arguments: (?P<option>--[^ ]{1,60})"
)
_ACCOUNT = re.compile(r"(?<=://)\S*[:%]\S*@")
"""User and password in an address: an error is no place for them."""
_EXAMPLES = """\
usage: stallscope COMMAND [OPTION]...

  stallscope snap -p mysqld             name the stall of a server now, and what ends it
  stallscope watch -p mysqld            watch it from now on, and record each stall
  stallscope analyze stacks.txt         name the stall in a dump of gdb, pt-pmp or another tool

`stallscope --help` lists all commands; `stallscope COMMAND --help` has more examples.
"""
_EPILOG = """\
exit codes:
  0 done   1 failed   2 wrong usage   3 partly done (the output says what is missing)
  4 a stall was found, with --fail-on-stall

`stallscope COMMAND --help` has examples.
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        message = _ACCOUNT.sub("***@", message)
        wrong = _WRONG.search(message)
        if wrong is not None and wrong.group("choice"):
            message = f"no command {wrong.group('choice')!r}"
        meant = "" if wrong is None else self._meant(wrong)
        # Without its cause, whose text has what is masked here.
        raise UsageError(f"{message}{meant}; see `{self.prog} --help`") from None

    def _meant(self, wrong: re.Match[str]) -> str:
        """Return the command or option that was probably meant, as a question."""
        word = (wrong.group("choice") or wrong.group("option")).partition("=")[0]
        known = COMMANDS if wrong.group("choice") else self._option_string_actions
        import difflib

        meant = next(iter(difflib.get_close_matches(word, known, 1, 0.6)), None)
        return f": did you mean {meant}?" if meant else ""

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Report an option that is not known where it was given: to this command, which knows the
        others."""
        found, rest = super().parse_known_args(args, namespace)
        unknown = [word for word in rest if word.startswith("-")]
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, rest


def parser(asked: Collection[str] = COMMANDS) -> argparse.ArgumentParser:
    """Return the parser of the command line; only the requested commands have options."""
    top = _Parser(
        prog="stallscope",
        description="Names the stall of a live database server without stopping it.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    top.set_defaults(whole_parser=parser)  # `completion` makes its script from it
    top.add_argument("--version", action="store_true", help="print the version and exit")
    commands = top.add_subparsers(dest="command", metavar="COMMAND")
    for name, what in COMMANDS.items():
        if name not in asked:
            commands.add_parser(name, help=what)
            continue
        add_command(commands, name, what, command_module(name))
    return top


def command_module(name: str) -> Command:
    """Import one command: importing all would make each start slower."""
    # Long: a case for each command.
    match name:
        case "snap":
            from stallscope.commands import snap

            return snap
        case "waits":
            from stallscope.commands import waits

            return waits
        case "top":
            from stallscope.commands import top

            return top
        case "watch":
            from stallscope.commands import watch

            return watch
        case "agents":
            from stallscope.commands import agents

            return agents
        case "cron":
            from stallscope.commands import cron

            return cron
        case "history":
            from stallscope.commands import history

            return history
        case "analyze":
            from stallscope.commands import analyze

            return analyze
        case "report":
            from stallscope.commands import report

            return report
        case "diff":
            from stallscope.commands import diff

            return diff
        case "incidents":
            from stallscope.commands import incidents

            return incidents
        case "fleet":
            from stallscope.commands import fleet

            return fleet
        case "export":
            from stallscope.commands import export

            return export
        case "status":
            from stallscope.commands import status

            return status
        case "storage":
            from stallscope.commands import storage

            return storage
        case "memory":
            from stallscope.commands import memory

            return memory
        case "poke":
            from stallscope.commands import poke

            return poke
        case "calibrate":
            from stallscope.commands import calibrate

            return calibrate
        case "symbolize":
            from stallscope.commands import symbolize

            return symbolize
        case "pack":
            from stallscope.commands import pack

            return pack
        case "signatures":
            from stallscope.commands import signatures

            return signatures
        case "triggers":
            from stallscope.commands import triggers

            return triggers
        case "notify":
            from stallscope.commands import notify

            return notify
        case "config":
            from stallscope.commands import config

            return config
        case "completion":
            from stallscope.commands import completion

            return completion
        case "run":
            from stallscope.commands import run

            return run
        case "inproc":
            from stallscope.commands import inproc

            return inproc
        case "doctor":
            from stallscope.commands import doctor

            return doctor
        case "version":
            from stallscope.commands import version

            return version
    raise UsageError(f"no command {name!r}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code. Nothing is raised but SystemExit of ``--help``."""
    argv = sys.argv[1:] if argv is None else argv
    debug = "--debug" in _own(argv)
    _open_standard_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        code = _run(argv)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader, such as `head`, has closed the pipe.
        _drop_output()
        return Exit.DONE
    except KeyboardInterrupt:
        return _fail("interrupted", EXIT_INTERRUPTED, debug=debug)
    except StallscopeError as error:
        return _fail(str(error), error.exit_code, debug=debug)
    except OSError as error:
        try:
            sys.stdout.flush()
        except OSError:
            _drop_output()
        return _fail(_os_error(error), Exit.FAILED, debug=debug)
    except MemoryError:
        return _fail("out of memory", Exit.FAILED, debug=debug)
    except Exception as error:
        what = f"internal error: {type(error).__name__}: {error}; please report it with --debug"
        return _fail(what, Exit.FAILED, debug=debug)


def _own(argv: Sequence[str]) -> Sequence[str]:
    """Return the arguments before ``--``: those after it belong to another program."""
    return argv[: argv.index("--")] if "--" in argv else argv


def _open_standard_streams() -> None:
    """Open /dev/null where a caller closed a standard stream, so that no file gets its number."""
    while True:
        descriptor = os.open(os.devnull, os.O_RDWR)
        if descriptor > 2:
            os.close(descriptor)
            break
    # For a stream that was closed at its start Python has None.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


def _drop_output() -> None:
    """Drop unwritten output: Python would write it at exit, print an error and exit with 120."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(argv: Sequence[str]) -> int:
    # No option before the command takes a value, so the first other word is the command.
    asked = [word for word in argv if not word.startswith("-")][:1]
    args = parser(asked).parse_args(argv)
    if args.version:
        from stallscope.base import package

        print(f"stallscope {package.version()}")
        return Exit.DONE
    if args.command is None:
        print(_EXAMPLES, end="")
        return Exit.DONE
    if getattr(args, "fail_on_stall", False):
        _outlive_reader()
    return command_module(args.command).run(args)


class _Patient(io.RawIOBase):
    """A pipe whose reader may leave: what it does not take is dropped."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def write(self, data: Any, /) -> int:
        try:
            return os.write(self._descriptor, data)
        except BrokenPipeError:
            _drop_output()
            return len(data)


def _outlive_reader() -> None:
    """Let the command go on where ``head`` has read enough: its exit code was asked for."""
    out = sys.stdout
    # A test's output is a text in memory.
    if isinstance(out, io.TextIOWrapper) and isinstance(out.buffer, io.BufferedWriter | io.FileIO):
        sys.stdout = io.TextIOWrapper(
            io.BufferedWriter(_Patient(out.fileno())),
            encoding=out.encoding,
            errors=out.errors,
            line_buffering=out.line_buffering,
        )


def _os_error(error: OSError) -> str:
    where = ""
    if error.filename:
        where = f"{error.filename}: "
    elif error.errno in _OF_WRITING:  # commands that write a file name it in their errors
        where = "cannot write standard output: "
    return f"{where}{error.strerror or error}"


def _fail(message: str, code: int, *, debug: bool) -> int:
    if debug:
        import traceback

        traceback.print_exc()
    print(f"stallscope: {one_line(message, 2000)}", file=sys.stderr)
    return code


def entry_point() -> NoReturn:
    """Run as a program."""
    sys.exit(main())
