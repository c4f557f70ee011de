# SPDX-License-Identifier: Apache-2.0
"""Print a script with which a shell completes stallscope's commands, options and ids."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from stallscope.base.errors import Exit

__all__ = ["EPILOG", "add_arguments", "run"]

EPILOG = """\
examples:
  stallscope completion bash >/etc/bash_completion.d/stallscope
  stallscope completion zsh >/usr/local/share/zsh/site-functions/_stallscope
  stallscope completion fish >~/.config/fish/completions/stallscope.fish
"""

SHELLS = ("bash", "zsh", "fish")
IDS = ("incidents", "signatures", "servers")
_OF_INCIDENTS = frozenset({"incidents", "report", "export", "analyze", "diff"})
"""Commands that take an incident's id."""
_MOST_IDS = 1000

_ASK = "stallscope completion incidents 2>/dev/null"
_FILE_OR_INCIDENT = {
    "bash": "_stallscope_inputs",
    "zsh": "_stallscope_inputs",
    "fish": f"(__fish_complete_path (commandline -ct); {_ASK})",
    "preamble": {
        "bash": f'_stallscope_inputs() {{ compgen -f -- $1; compgen -W "$({_ASK})" -- $1; }}',
        "zsh": "_stallscope_inputs() {"
        f""" _alternative 'files:file:_files' "ids:incident:($({_ASK}))"; }}""",
    },
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument(
        "what",
        choices=(*SHELLS, *IDS),
        metavar="SHELL|IDS",
        help="bash, zsh or fish: the script; incidents, signatures, servers: their ids, one per"
        " line",
    )


def run(args: argparse.Namespace) -> Exit:
    """Print the script of a shell, or the ids that such a script asks for."""
    if args.what == "incidents":
        print("\n".join(_incidents()))
    elif args.what == "signatures":
        from stallscope.analyzers import catalog

        print("\n".join(signature.id for signature in catalog.load().signatures))
    elif args.what == "servers":
        from stallscope.collectors import processes

        for pid, program in processes.databases():
            print(f"{pid}\n{program}")
    else:
        print(script(args.what, args.whole_parser()), end="")
    return Exit.DONE


def script(shell: str, top: argparse.ArgumentParser) -> str:
    """Return the script of a shell for the parser of the whole command line."""
    import shtab

    for action in top._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, command in action.choices.items():
                _mark(name, command)
    text: str = shtab.complete(top, shell)
    return text if text.endswith("\n") else text + "\n"


def _mark(name: str, command: argparse.ArgumentParser) -> None:
    """Give shtab the possible values of a command's arguments."""
    import shtab

    for action in command._actions:
        words = set(str(action.metavar or "").split("|"))
        files = bool({"FILE", "CAPTURE", "A", "B"} & words)
        takes_id = not action.option_strings and name in _OF_INCIDENTS
        kind: object = None
        if "-p" in action.option_strings:
            kind = shtab.cmd("stallscope completion servers 2>/dev/null")
        elif takes_id and files:
            kind = _FILE_OR_INCIDENT
        elif "ID" in words:
            what = "incidents" if takes_id else "signatures"
            kind = shtab.cmd(f"stallscope completion {what} 2>/dev/null")
        elif files:
            kind = shtab.FILE
        elif "DIR" in words:
            kind = shtab.DIRECTORY
        if kind is not None and action.choices is None:
            action.complete = kind  # type: ignore[attr-defined]


def _incidents() -> Iterator[str]:
    """Yield the ids of the newest incidents of the default store, from its folders' names."""
    from stallscope.store import layout

    folder = layout.reading_dest() / layout.INCIDENTS
    try:
        names = sorted((path.name for path in folder.iterdir()), reverse=True)
    except OSError:
        return
    yield from [name for name in names if layout.is_id(name)][:_MOST_IDS]
