# SPDX-License-Identifier: Apache-2.0
"""Make man pages of docs/commands/*.md: ``python manpages.py DOCS VERSION OUT``.

Markdown's parser is markdown-it. What is written here is roff: pages for 80 columns, in which a
table is a list of terms, since roff's own tables do not fit.
"""

from __future__ import annotations

import datetime
import os
import re
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token
from mdit_py_plugins.deflist import deflist_plugin

__all__ = ["overview", "page", "write"]

SECTION = 1
_WIDTH = 76
_SPECIAL = {"\\": r"\e", "-": r"\-", "'": r"\(aq", "`": r"\(ga", "^": r"\(ha", "~": r"\(ti"}
_BEFORE_SPACE = re.compile(r"\s+")


def page(markdown: str, name: str, version: str, date: str) -> str:
    """Return the man page of a command, from its page in Markdown."""
    parser = MarkdownIt("commonmark").enable("table").use(deflist_plugin)
    return _Page(
        parser.parse(markdown), f"stallscope-{name}", _head(f"stallscope-{name}", version, date)
    ).render()


def _head(name: str, version: str, date: str) -> str:
    return f'.TH {name.upper()} {SECTION} "{date}" "stallscope {version}" "stallscope"'


class _Page:
    def __init__(self, tokens: Sequence[Token], name: str, head: str) -> None:
        self._tokens = tokens
        self._at = 0
        self._name = name
        self._out = [head]

    def render(self) -> str:
        self._title()
        while self._at < len(self._tokens):
            self._block()
        return "\n".join(self._out) + "\n"

    def _next(self) -> Token:
        token = self._tokens[self._at]
        self._at += 1
        return token

    def _inline(self, closing: str) -> str:
        """Return the text of the blocks up to a token, which is skipped."""
        parts = []
        while (token := self._next()).type != closing:
            if token.type == "inline":
                parts.append(_text(token))
        return " ".join(parts)

    def _title(self) -> None:
        """Pass over the heading; the first paragraph is what the command is for."""
        assert self._next().type == "heading_open"
        self._inline("heading_close")
        assert self._next().type == "paragraph_open"
        what = self._inline("paragraph_close").rstrip(".")
        self._out += [".SH NAME", f"{_escape(self._name)} \\- {what[0].lower()}{what[1:]}"]

    def _block(self) -> None:
        token = self._next()
        match token.type:
            case "heading_open":
                text = self._inline("heading_close")
                macro = ".SH" if token.tag == "h2" else ".SS"
                self._out.append(f"{macro} {text.upper() if macro == '.SH' else text}")
            case "paragraph_open":
                self._break()
                self._paragraph(self._inline("paragraph_close"))
            case "fence" | "code_block":
                self._code(token.content)
            case "bullet_list_open":
                self._list(r"\(bu", "bullet_list_close")
            case "ordered_list_open":
                self._list("", "ordered_list_close")
            case "dl_open":
                self._definitions()
            case "table_open":
                self._table()
            case "html_block" if token.content.startswith("<!--"):
                pass  # where a session is run: docblocks
            case _:
                raise ValueError(f"{self._name}: {token.type}: no way to write it is known")

    def _break(self) -> None:
        """Begin a paragraph, where nothing has begun one."""
        if self._out[-1].split(" ")[0] not in (".SH", ".SS", ".IP", ".RS"):
            self._out.append(".PP")

    def _paragraph(self, text: str) -> None:
        # Escaped text has no blanks of its own within an escape, so it can be wrapped.
        for line in textwrap.wrap(text, _WIDTH, break_long_words=False, break_on_hyphens=False):
            self._out.append(_line(line))

    def _code(self, content: str) -> None:
        self._break()
        self._out += [".RS 4", ".nf"]
        self._out += [_line(_escape(line)) or r"\&" for line in content.rstrip("\n").split("\n")]
        self._out += [".fi", ".RE"]

    def _list(self, mark: str, closing: str) -> None:
        number = 0
        while (token := self._next()).type != closing:
            assert token.type == "list_item_open"
            number += 1
            self._out.append(f".IP {mark or f'{number}.'} {2 if mark else 4}")
            while self._tokens[self._at].type != "list_item_close":
                if self._tokens[self._at].type.endswith("_list_open"):
                    self._out.append(".RS")
                    self._block()
                    self._out.append(".RE")
                else:
                    self._block()
            self._next()

    def _definitions(self) -> None:
        while (token := self._next()).type != "dl_close":
            if token.type == "dt_open":
                self._term(self._inline("dt_close"))
            elif token.type == "dd_open":
                self._paragraph(self._inline("dd_close"))

    def _table(self) -> None:
        """Write the first cell of each row as a term, and the rest as what it means."""
        rows: list[list[str]] = []
        while (token := self._next()).type != "table_close":
            if token.type == "tr_open":
                rows.append([])
            elif token.type == "inline":
                rows[-1].append(_text(token))
        head, *body = rows
        for first, *rest in body:
            self._term(first)
            cells = [
                f"{title}: {cell}" if title and len(rest) > 1 else cell
                for title, cell in zip(head[1:], rest, strict=True)
                if cell
            ]
            self._paragraph("; ".join(cells))

    def _term(self, text: str) -> None:
        self._out += [".TP", _line(text)] if text else [".PP"]


def _text(token: Token) -> str:
    """Return a line of roff for the content of a paragraph, a heading, a cell."""
    out: list[str] = []
    target = ""
    for child in token.children or ():
        match child.type:
            case "text":
                out.append(_escape(child.content))
            case "softbreak" | "hardbreak":
                out.append(" ")
            case "code_inline":
                # Bold words of their own, so that a wrapped line does not end in bold.
                words = _BEFORE_SPACE.split(child.content.strip())
                out.append(" ".join(f"\\fB{_escape(word)}\\fR" for word in words))
            case "strong_open":
                out.append(r"\fB")
            case "em_open":
                out.append(r"\fI")
            case "strong_close" | "em_close":
                out.append(r"\fR")
            case "image":
                out.append(f"[{_escape(child.content)}]")
            case "link_open":
                target = str(child.attrs.get("href", ""))
                out.append("")
                start = len(out)
            case "link_close":
                out[start:] = [_link("".join(out[start:]), target)]
            case _:
                raise ValueError(f"{child.type}: no way to write it is known")
    return "".join(out)


def _link(text: str, target: str) -> str:
    command = re.fullmatch(r"([a-z-]+)\.md(?:#.*)?", target)
    if command is not None:
        name = _escape(f"stallscope-{command.group(1)}")
        return f"{text} (\\fB{name}\\fR({SECTION}))"
    return f"{text} <{_escape(target)}>" if "://" in target else text


def _escape(text: str) -> str:
    return "".join(
        _SPECIAL.get(char, char) if char.isascii() else f"\\[u{ord(char):04X}]" for char in text
    )


def _line(text: str) -> str:
    """Keep a line that begins like a macro from being one."""
    return f"\\&{text}" if text.startswith((".", "'")) else text


def overview(commands: dict[str, str], version: str, date: str) -> str:
    """Return the page of stallscope itself."""
    lines = [_head("stallscope", version, date), ".SH NAME"]
    lines += [r"stallscope \- names the stall of a live database server without stopping it"]
    lines += [".SH SYNOPSIS", r".B stallscope", r"\fICOMMAND\fR [\fIOPTIONS\fR]", ".SH COMMANDS"]
    for name, what in commands.items():
        lines += [".TP", f"\\fBstallscope\\-{_escape(name)}\\fR({SECTION})", _escape(what)]
    lines += [".SH OPTIONS", "Of every command:"]
    common = {"help": "what it takes, with examples", "debug": "print tracebacks of errors"}
    for option, what in common.items():
        lines += [".TP", f"\\fB\\-\\-{option}\\fR", what]
    lines += [".SH EXIT STATUS", ".TP", "0", "done"]
    for code, what in (
        (1, "failed"),
        (2, "wrong usage"),
        (3, "done in part: the output says what is missing"),
        (4, r"a stall was found and \fB\-\-fail\-on\-stall\fR was given"),
    ):
        lines += [".TP", str(code), what]
    return "\n".join(lines) + "\n"


def _date(source: Path) -> str:
    """Return the day of a page: of its file, or as reproducible builds have it."""
    stamp = os.environ.get("SOURCE_DATE_EPOCH")
    seconds = int(stamp) if stamp else int(source.stat().st_mtime)
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%d")


def write(docs: Path, version: str, out: Path) -> Iterator[Path]:
    """Write the pages of all commands, and the one of stallscope itself."""
    from stallscope import main

    out.mkdir(parents=True, exist_ok=True)
    path = out / f"stallscope.{SECTION}"
    path.write_text(overview(main.COMMANDS, version, _date(Path(main.__file__))), "utf-8")
    yield path
    for source in sorted(docs.glob("*.md")):
        path = out / f"stallscope-{source.stem}.{SECTION}"
        path.write_text(
            page(source.read_text("utf-8"), source.stem, version, _date(source)), "utf-8"
        )
        yield path


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    for made in write(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])):
        print(made)
