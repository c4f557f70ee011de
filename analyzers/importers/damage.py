# SPDX-License-Identifier: Apache-2.0
"""Undo what happened to a dump on its way here, before any format reads it.

Each damage is looked for in samples of the text, or by one character that is nowhere else, so text
without damage costs next to nothing. docs/formats.md has an example of each.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Iterator, Sequence

from stallscope.analyzers.importers import prefixes, shapes, wrapping
from stallscope.analyzers.importers.dump import MAX_LINE

__all__ = ["repaired"]

_SHORT = 128 << 10
"""Characters of a text that is checked as a whole."""
_SAMPLE = 8 << 10
"""Characters of each sample of a longer one: the start, the middle and the end."""

_ROUNDS = 3
_OBJECT = re.compile(r'\{"log": ?"([^\n]{0,65000}?)(?:\\n)?", ?"stream": ?"')
_COLOURS = re.compile(
    "\x1b(?:\\[[0-9;:?]{0,40}[ -/]{0,4}[@-~]|\\][^\x07\x1b\n]{0,500}(?:\x07|\x1b\\\\)|[@-Z\\\\-_])?"
)
_LOST_COLOURS = re.compile(r"\[(?:\d{1,3}(?:;\d{1,3}){0,4})?m(?=\S| #| 0x)|\[0?m(?:\[K)?")
_BLANKS = {0xA0: " ", 0x2007: " ", 0x202F: " ", 0x200B: None, 0xFEFF: None, 0xAD: None}
_ODD_BLANK = re.compile("[\u00a0\u00ad\u2007\u200b\u202f\ufeff]")
_ENTITY = re.compile(r"&(?:lt|gt|amp|quot|apos|nbsp|#\d{1,7}|#x[0-9a-fA-F]{1,6});")
_TAG = re.compile(
    r"</?(?:pre|div|span|code|table|tbody|td|tr|li|ul|ol|html|body|blockquote|font|samp|tt)"
    r"(?:\s[^<>\n]{0,300})?/?>",
    re.I,
)
_BREAK = re.compile(r"(?:<br ?/?>|</p>[ \t]{0,8}<p>)[ \t]{0,8}\n?", re.I)
_PARAGRAPH = re.compile(
    r"^([^<\n]{0,200})<p>(?=.*</p>)|^[ \t]{0,8}<p>|</p>[ \t]{0,8}$", re.I | re.M
)
_HTML = re.compile(r"<(?:pre|br|p|/p|/code|/span|/div|/td|html)[ />]", re.I)
_FENCE = re.compile(
    r"^[ \t]{0,8}(?:(?:`{3,8}|~{3,8})[\w+-]{0,20}[ \t]{0,8}$"
    r"|\{(?:noformat|code|quote)(?::[^}\n]{0,200})?\})"
    r"|\{(?:noformat|code|quote)\}[ \t]{0,8}$",
    re.M,
)
_ESCAPE = re.compile(r"\\([_*<>#\[\]~`])")
_ESCAPED = re.compile(r"^([ \t]{0,40})\\#(?=\d)", re.M)
_HASHLESS = re.compile(
    r"^([ \t]{0,8})(?=\d{1,4}[ \t]{1,3}"
    r"(?:0x[0-9a-f]{6,16} in \S|<signal|[A-Za-z_~][\w:~@.<>, ]{2,400}(?: \(| at \S| from /|$)))",
    re.M,
)
_HASHLESS_TWO = re.compile(
    r"^[ \t]{0,8}0[ \t]{1,3}[^\s,;]+(?: [^\n]{0,2000})?\n(?:(?![ \t]{0,8}\d)[^\n]{0,400}\n){0,20}"
    r"[ \t]{0,8}(?:1[ \t]{1,3})?0x[0-9a-f]{6,16} in ",
    re.M,
)
_TABBED = re.compile(r"^([ \t]{0,40}#\d{1,4})\t[ \t]{0,8}", re.M)
_CUT = re.compile(r"…|\.\.\.(?=>)")
_GLUED_COUNT = re.compile(
    r"^([ \t]{0,12}\d{1,7})(?=[A-Za-z_~][\w:~@.?]{2,400}(?:\([^()\s]{0,200}\))?,[A-Za-z_~?:.])",
    re.M,
)
_LONE_COUNT = re.compile(
    r"^([ \t]{0,12}\d{1,7})\n[ \t]{0,8}(?=[A-Za-z_~][^\s;,]{2,400},[\w~?:.])", re.M
)
_GLUED_PC = re.compile(r"^([ \t]{0,40})#(\d{1,4}?)(?=0x[0-9a-f]{6,16}\b)", re.M)
_GLUED_NAME = re.compile(r"^([ \t]{0,40})#(\d{1,4})(?=(?!0x)[A-Za-z_~<])", re.M)
_GLUED_IN = re.compile(r"^([ \t]{0,40}#\d{1,4}\s{1,4}0x[0-9a-f]{6,16})in (?=\S)", re.M)
_NUMBER = re.compile(r"^[ \t]{0,40}#(\d{1,6})\b", re.M)
_FIRST = re.compile(
    r"^[ \t]{0,8}([A-Za-z_][\w:~@.]{2,200} \([^\n]{0,400}(?:\n(?![ \t]{0,8}#)[^\n]{1,400}){0,4}\n)"
    r"(?=[ \t]{0,8}#1 )",
    re.M,
)
"""A frame that has lost `#0` with its number."""
_FROM_ONE = re.compile(
    r"(?<!\))\n[ \t]{0,40}#1 {1,3}[A-Za-z_][\w:~@.]{2,200}(?: ?\(\))?\n[ \t]{0,40}#2 "
)
"""A stack that somebody numbered."""
_REMARK = re.compile(
    r"^([ \t]{0,40}#\d{1,3} {1,4}(?!0x)[\w:~<>@.*&]{3,400}(?:\([^()\n]{0,200}\))?)"
    r"(?: {2,100}|\t[ \t]{0,100})[^\s(][^\n]*$",
    re.M,
)
_HEAD = re.compile(r"[ \t]{0,40}(?:\[Switching to )?Thread \d{1,9} \((?:Thread 0x|LWP|process)")
_AT_PC = re.compile(r"[ \t]{0,40}0x[0-9a-f]{6,16} in \S")
_HASH_LOST = re.compile(
    r"[ \t]{0,40}(\d{1,4})[ \t]{1,3}"
    r"(?:0x[0-9a-f]{6,16} in \S|<signal|[A-Za-z_~<][^,;]{2,400}(?: \(| at \S| from /|$))"
)
_CALL = re.compile(
    r"[ \t]{0,40}(?!\S{1,200}\.(?:c|cc|cpp|h|ic|i):\d)"
    r"(?:[\w:~@.$]|<[^<>\n]{0,200}>){3,400}(?: \(.{0,2000}\))?"
    r"(?: (?:at|from) \S+)?[ \t]{0,8}$"
)


def repaired(text: str) -> tuple[str, list[str]]:
    """Return the text as the tools print it, and the names of the damages that were undone."""
    names: dict[str, None] = {}
    # What hides lines comes first, then what is before them, then where they end.
    for _ in range(_ROUNDS):
        before = text
        for name, repair in _CHARACTERS:
            text = _noted(names, name, text, repair(text))
        changed, found = prefixes.unprefixed(text, _sample(text))
        if changed is text:
            break
        names.update(dict.fromkeys(found))
        text = changed
        if text == before:
            break
    # Lines are joined first: a repair inside them changes where they end.
    changed, _ = wrapping.joined(text, _sample(text), shapes.begins)
    text = _noted(names, "wrapped lines", text, changed)
    text = _noted(names, "joined words", text, _glued(text))
    for name, repair in _FRAMES:
        text = _noted(names, name, text, repair(text))
    return text, list(names)


def _noted(names: dict[str, None], name: str, text: str, changed: str) -> str:
    if changed is not text and changed != text:
        names[name] = None
    return changed


def _sample(text: str) -> list[str]:
    """Return lines of the start, the middle and the end; of a short text all."""
    if len(text) <= _SHORT:
        return text.split("\n")
    middle = len(text) // 2
    parts = (text[:_SAMPLE], text[middle : middle + _SAMPLE], text[-_SAMPLE:])
    return [line for part in parts for line in (*part.split("\n")[1:-1], "")]


def _seen(text: str, pattern: re.Pattern[str]) -> bool:
    """Return whether samples of the text have a match."""
    if len(text) <= _SHORT:
        return pattern.search(text) is not None
    middle = len(text) // 2
    ends = (0, middle, len(text) - _SAMPLE)
    return any(pattern.search(text, start, start + _SAMPLE) for start in ends)


def _json(text: str) -> str:
    """Undo docker's log files: an object a line."""
    if '{"log":"' not in text[:_SAMPLE] and '{"log": "' not in text[:_SAMPLE]:
        return text
    return "\n".join(map(_logged, text.split("\n")))


def _logged(line: str) -> str:
    if not line.startswith('{"log":'):
        return line
    try:
        said = json.loads(line[: 4 * MAX_LINE])
    except (ValueError, RecursionError):
        match = _OBJECT.match(line)
        return match.group(1).replace('\\"', '"') if match else line
    log = said.get("log") if isinstance(said, dict) else None
    return log.removesuffix("\n") if isinstance(log, str) else line


def _colours(text: str) -> str:
    if "\x1b" in text:
        text = _COLOURS.sub("", text)
    elif _seen(text, _LOST_COLOURS):
        text = _LOST_COLOURS.sub("", text)
    return text


def _blanks(text: str) -> str:
    if text.isascii() or _ODD_BLANK.search(text) is None:
        return text
    return text.translate(_BLANKS)


def _line_ends(text: str) -> str:
    if "\r" not in text:
        return text
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _html(text: str) -> str:
    for _ in range(2):
        if _seen(text, _HTML):
            text = _TAG.sub("", _PARAGRAPH.sub(r"\1", _BREAK.sub("\n", text)))
        if not _seen(text, _ENTITY):
            break
        text = _ENTITY.sub(lambda match: html.unescape(match.group()), text)
    return _blanks(text)


def _fences(text: str) -> str:
    return _FENCE.sub("", text) if _seen(text, _FENCE) else text


def _escapes(text: str) -> str:
    if "\\" not in text:
        return text
    if "\\_" in text and _seen(text, _ESCAPE):
        return _ESCAPE.sub(r"\1", text)
    return _ESCAPED.sub(r"\1#", text) if _seen(text, _ESCAPED) else text


def _glued(text: str) -> str:
    if "#0" not in text and "#1 " not in text and _seen(text, _HASHLESS_TWO):
        text = _HASHLESS.sub(r"\1#", text)
    if _seen(text, _TABBED):
        text = _TABBED.sub(r"\1  ", text)
    if _seen(text, _LONE_COUNT):
        text = _LONE_COUNT.sub(r"\1 ", text)
    if _seen(text, _GLUED_COUNT):
        text = _GLUED_COUNT.sub(r"\1 ", text)
    if _seen(text, _GLUED_PC):
        text = _GLUED_PC.sub(r"\1#\2  ", text)
    if _seen(text, _GLUED_NAME):
        text = _GLUED_NAME.sub(r"\1#\2  ", text)
    if _seen(text, _GLUED_IN):
        text = _GLUED_IN.sub(r"\1 in ", text)
    return text


def _templates(text: str) -> str:
    """Close the templates that were cut: ``A<B<…>(…)``."""
    if not _seen(text, _CUT):
        return text
    return "\n".join(
        _closed(line) if "…" in line or "...>" in line else line for line in text.split("\n")
    )


def _closed(line: str) -> str:
    plain = line.replace("->", "  ").replace("operator<", "operator ").replace("<<", "  ")
    missing = plain.count("<") - plain.count(">")
    if not 0 < missing <= 40:
        return line
    for cut in ("…", "..."):
        at = line.find(cut)
        if at < 0:
            continue
        end = at + len(cut)
        while line[end : end + 1] in (">", " ") and line[end : end + 1]:
            end += 1
        if end < len(line) and line[end - 1] == " ":
            end -= 1
        return line[:end] + ">" * missing + line[end:]
    return line


def _numbers(text: str) -> str:
    """Give frames of gdb numbers, which lost them."""
    if "#0" not in text and _seen(text, _FIRST):
        text = _FIRST.sub(r"#0  \1", text, count=1)
    if _seen(text, _FROM_ONE) and "#0" not in text:
        text = _NUMBER.sub(lambda match: f"#{max(0, int(match.group(1)) - 1)}", text)
    sample = _sample(text)
    heads = any(map(_HEAD.match, sample))
    # Of names alone only those below a thread's head are frames.
    bare = heads and "#0" not in text and "#1" not in text
    lost = (heads or "#0 " in text) and any(map(_HASH_LOST.match, sample))
    if not bare and not lost and sum(1 for line in sample if _AT_PC.match(line)) < 2:
        return text
    return "\n".join(_numbered(text.split("\n"), _CALL if bare else _AT_PC, inside=not heads))


def _numbered(lines: Sequence[str], frame: re.Pattern[str], *, inside: bool) -> Iterator[str]:
    """Yield the lines, frames numbered; ``inside``: whether all frames are such, without a head."""
    headless = inside
    after = before = 0
    given = False
    for line in lines:
        if before and _AT_PC.match(line):  # one blank line stood in the middle of a thread
            after, inside = before, True
        before = 0
        if match := _NUMBER.match(line):
            after, inside = int(match.group(1)) + 1, True
        elif _HEAD.match(line):
            after, inside, given = 0, True, False
        elif not line.strip():
            before = after if given and not headless else 0
            after, inside = 0, headless
        elif (
            inside
            and (after or not headless)
            and (match := _HASH_LOST.match(line))
            and int(match.group(1)) == after
        ):
            line = f"#{line.lstrip()}"
            after += 1
        elif inside and len(line) < 4000 and (frame.match(line) or _AT_PC.match(line)):
            line = f"#{after}  {line.lstrip()}"
            after += 1
            given = True
        yield line


def _remarks(text: str) -> str:
    """Cut what people write behind the frames of a stack."""
    return _REMARK.sub(r"\1", text) if _seen(text, _REMARK) else text


_CHARACTERS: tuple[tuple[str, Callable[[str], str]], ...] = (
    ("line ends", _line_ends),
    ("fences", _fences),
    ("a log's JSON", _json),
    ("colours", _colours),
    ("blanks", _blanks),
    ("HTML", _html),
    ("fences", _fences),
    ("escapes", _escapes),
)
_FRAMES: tuple[tuple[str, Callable[[str], str]], ...] = (
    ("cut templates", _templates),
    ("remarks", _remarks),
    ("lost numbers", _numbers),
)
