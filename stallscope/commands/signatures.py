# SPDX-License-Identifier: Apache-2.0
"""Show the catalog of stalls, or check a file of signatures."""

from __future__ import annotations

import argparse
import difflib
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from stallscope.analyzers import catalog
from stallscope.base.errors import Exit, UsageError
from stallscope.base.text import clean
from stallscope.commands import _options
from stallscope.reporters.lines import Line, print_lines
from stallscope.reporters.signaturepage import markdown

__all__ = ["EPILOG", "add_arguments", "run"]

EPILOG = """\
examples:
  stallscope signatures
  stallscope signatures innodb-deadlock-check
  stallscope signatures --check my-signatures.toml
"""

_WIDTH = 80


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("id", nargs="?", metavar="ID", help="show this signature in full")
    parser.add_argument("--check", type=Path, metavar="FILE", help="check a signature file")
    _options.add_signatures_argument(parser)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON")
    form.add_argument("--markdown", action="store_true", help="print the whole catalog as Markdown")


def run(args: argparse.Namespace) -> Exit:
    """Print the list, or one signature, or that a file is valid."""
    if args.check is not None:
        return _check(args)
    known = catalog.load(args.signatures)
    if args.markdown:
        if args.id is not None:
            raise UsageError("--markdown prints all signatures: do not give an ID")
        print(markdown(known), end="")
        return Exit.DONE
    signatures = known.signatures
    if args.id is not None:
        signatures = (_named(args.id, signatures),)
    if args.json:
        shown = [_as_json(signature) for signature in signatures]
        value = shown[0] if args.id is not None else {"signatures": shown}
        print(msgspec.json.encode(value).decode())
    elif args.id is not None:
        print_lines(list(_whole(signatures[0])), sys.stdout)
    else:
        print_lines(list(_list(signatures)), sys.stdout)
    return Exit.DONE


def _check(args: argparse.Namespace) -> Exit:
    if args.id is not None:
        raise UsageError("give an ID or --check FILE, not both")
    own = catalog.check(args.check)
    if args.json:
        result = {"file": str(args.check), "signatures": [signature.id for signature in own]}
        print(msgspec.json.encode(result).decode())
    else:
        print(f"{clean(str(args.check))}: {len(own)} signatures, no errors")
    return Exit.DONE


def _named(name: str, signatures: Sequence[catalog.Signature]) -> catalog.Signature:
    for signature in signatures:
        if signature.id == name:
            return signature
    near = difflib.get_close_matches(name, [signature.id for signature in signatures], n=3)
    hint = (
        f"; did you mean {' or '.join(near)}?" if near else "; `stallscope signatures` lists them"
    )
    raise UsageError(f"no signature {name}{hint}")


def _as_json(signature: catalog.Signature) -> dict[str, Any]:
    return {
        "id": signature.id,
        "title": signature.title,
        "family": signature.family,
        "servers": list(signature.servers),
        "versions": signature.versions,
        "meaning": signature.meaning,
        "waiters": [
            {"versions": versions, "stack": stack} for versions, stack in signature.waiter_texts
        ],
        "holders": [
            {"role": holder.role, "stack": pattern.text}
            for holder in signature.holders
            for pattern in holder.patterns
        ],
        "releases": [
            {"role": release.role, "stack": pattern.text}
            for release in signature.releases
            for pattern in release.patterns
        ],
        "locks": list(signature.locks),
        "explains": list(signature.explains),
        "causes": list(signature.causes),
        "remedies": list(signature.remedies),
        "references": list(signature.references),
    }


def _list(signatures: Sequence[catalog.Signature]) -> Iterator[Line]:
    width = max((len(signature.id) for signature in signatures), default=0)
    family = None
    for signature in sorted(signatures, key=lambda s: (s.family, s.id)):
        if signature.family != family:
            if family is not None:
                yield Line("")
            family = signature.family
            yield Line(clean(family), "bold")
        head = f"  {clean(signature.id):<{width}}  "
        yield from _wrap(signature.title, head, " " * len(head))


def _whole(signature: catalog.Signature) -> Iterator[Line]:
    yield Line(clean(signature.id), "bold")
    yield from _wrap(signature.title, "  ", "  ")
    servers = ", ".join(signature.servers) or "any process"
    versions = f", versions {signature.versions}" if signature.versions else ""
    yield from _wrap(f"{servers}{versions}", "  ", "  ")
    yield Line("")
    yield from _wrap(signature.meaning, "  ", "  ")
    for title, items in (
        ("Waiters", [f"{text} ({v})" if v else text for v, text in signature.waiter_texts]),
        ("Locks", signature.locks),
        ("Blocker", [f"{h.role}: {p.text}" for h in signature.holders for p in h.patterns]),
        ("Releases", [f"{r.role}: {p.text}" for r in signature.releases for p in r.patterns]),
        ("What it causes", (*signature.explains, *signature.causes)),
        ("What to do", signature.remedies),
        ("References", signature.references),
    ):
        if items:
            yield Line("")
            yield Line(title, "bold")
        for item in items:
            yield from _wrap(item, "  - ", "    ")


def _wrap(text: str, head: str, hang: str) -> Iterator[Line]:
    for line in textwrap.wrap(
        clean(" ".join(text.split())),
        width=_WIDTH,
        initial_indent=head,
        subsequent_indent=hang,
        break_on_hyphens=False,
        break_long_words=False,
    ):
        yield Line(line)
