# SPDX-License-Identifier: Apache-2.0
"""What happens to a dump on its way: to its text in mails, logs and issues, and to its frames.

Each damage of a text takes and returns bytes. `apply` puts several on one dump in an order in which
they can occur. The last four functions change what the dump says; the text stays undamaged.
"""

from __future__ import annotations

import gzip
import html
import json
import random
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING or sys.version_info < (3, 14):
    from backports import zstd
else:
    from compression import zstd

__all__ = [
    "DAMAGES",
    "STAGES",
    "apply",
    "drop_frames",
    "insert_unknown",
    "remove_threads",
    "rename",
]

Damage = Callable[[bytes], bytes]


def _of_text(change: Callable[[str], str]) -> Damage:
    def damage(data: bytes) -> bytes:
        return change(data.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")

    return damage


def _each(change: Callable[[int, str], str]) -> Damage:
    """Change each line; the end of the last one makes no line."""

    def damage(text: str) -> str:
        lines = text.removesuffix("\n").split("\n")
        return "".join(f"{change(at, line)}\n" for at, line in enumerate(lines))

    return _of_text(damage)


def _sub(pattern: str, new: str) -> Damage:
    known = re.compile(pattern, re.M)
    return _of_text(lambda text: known.sub(new, text))


def _wrap(width: int) -> Damage:
    def wrapped(_: int, line: str) -> str:
        return "\n".join(line[at : at + width] for at in range(0, len(line), width)) or line

    return _each(wrapped)


def _fold(width: int) -> Damage:
    """Wrap at blanks, as mail programs do: the blank goes."""

    def folded(_: int, line: str) -> str:
        out = []
        while len(line) > width:
            at = line.rfind(" ", 1, width + 1)
            if at <= 0 or not line[:at].strip():
                break
            out.append(line[:at])
            line = line[at + 1 :]
        return "\n".join([*out, line])

    return _each(folded)


def _clock(at: int) -> str:
    return f"{10 + at // 3600 % 10:02}:{at // 60 % 60:02}:{at % 60:02}"


def _colours(text: str) -> str:
    text = re.sub(r"0x[0-9a-f]{6,16}", "\x1b[34m\\g<0>\x1b[m", text)
    return re.sub(r"^(\s*#\d+ )", "\x1b[1;33m\\1\x1b[0m", text, flags=re.M)


def _json_log(at: int, line: str) -> str:
    said = {"log": f"{line}\n", "stream": "stderr", "time": f"2026-03-01T{_clock(at)}.123456789Z"}
    return json.dumps(said, ensure_ascii=False)


_CONTENT: dict[str, Damage] = {
    "empty () lost": _sub(r"^(\s*#\d+ .*\S) \(\)$", r"\1"),
    "arguments lost": _sub(r"^(#\d+ [^\n(<]*[\w@]) \([^\n()]*\)$", r"\1"),
    "# lost": _sub(r"^#(?=\d+ )", ""),
    "# escaped": _sub(r"^#(?=\d+ )", r"\\#"),
    "numbers lost": _sub(r"^#\d+ +(?=0x[0-9a-f]+ in )", ""),
    "count joined to the name": _sub(r"^( *\d+) (?=[A-Za-z_][^\s;]*,)", r"\1"),
    "number joined to the frame": _sub(r"^#(\d+) +(?=[A-Za-z_0])", r"#\1"),
    "tabs": _sub(r"  ", "\t"),
    "blanks at the ends": _each(lambda _, line: f"{line}  "),
    "blank lines doubled": _sub(r"^$", "\n"),
    "hard blanks": _sub(r" (?= )", "\u00a0"),
}
_SHAPE: dict[str, Damage] = {
    **{f"wrapped at {width}": _wrap(width) for width in (72, 77, 80, 100, 120, 132)},
    **{f"folded at {width}": _fold(width) for width in (72, 80, 100, 132)},
}
_LINES: dict[str, Damage] = {
    "quoted": _each(lambda _, line: f"> {line}".rstrip()),
    "quoted twice": _each(lambda _, line: f"> > {line}"),
    "quoted without blanks": _each(lambda _, line: f">>{line}"),
    "grep -n": _each(lambda at, line: f"{at + 1}:{line}"),
    "grep -n of a file": _each(lambda at, line: f"db-1/stacks.txt:{at + 1}:{line}"),
    "grep -H": _each(lambda _, line: f"stacks.txt:{line}"),
    "cat -n": _each(lambda at, line: f"{at + 1:6}\t{line}"),
    "nl": _each(lambda at, line: f"{at + 1:6}  {line}"),
    "diff +": _each(lambda _, line: f"+{line}"),
    "diff -": _each(lambda _, line: f"-{line}"),
    "diff of equal lines": _each(lambda _, line: f" {line}"),
    "journal": _each(lambda at, line: f"Mar 01 {_clock(at)} db-1 mariadbd[4711]: {line}"),
    "syslog": _each(
        lambda at, line: f"2026-03-01T{_clock(at)}.123456+00:00 db-1 gdb.sh[4711]: {line}"
    ),
    "kubectl --timestamps": _each(lambda at, line: f"2026-03-01T{_clock(at)}.123456789Z {line}"),
    "kubectl --prefix": _each(lambda _, line: f"[pod/db-0/server] {line}"),
    "compose": _each(lambda _, line: f"db-1  | {line}"),
    "CRI": _each(lambda at, line: f"2026-03-01T{_clock(at)}.123456789Z stderr F {line}"),
    "docker's JSON": _each(_json_log),
    "ts": _each(lambda at, line: f"2026-03-01 {_clock(at)} {line}"),
    "ts of the day": _each(lambda at, line: f"[{_clock(at)}] {line}"),
    "indented": _each(lambda _, line: f"    {line}"),
    "indented by a tab": _each(lambda _, line: f"\t{line}"),
    "colours": _of_text(_colours),
    "HTML": _of_text(lambda text: html.escape(text, quote=False)),
    "HTML with quotes": _of_text(html.escape),
    "HTML <pre>": _of_text(lambda text: f"<p>Stacks:</p>\n<pre>{html.escape(text)}</pre>\n"),
    "HTML <br>": _each(lambda _, line: f"{html.escape(line)}<br>"),
    "HTML <p>": _each(lambda _, line: f"<p>{html.escape(line)}</p>"),
    "{noformat}": _of_text(lambda text: f"It hangs.\n{{noformat}}{text}{{noformat}}\n"),
    "{code}": _of_text(lambda text: f"It hangs.\n{{code:title=gdb}}\n{text}{{code}}\n"),
    "a fence": _of_text(lambda text: f"It hangs.\n\n```text\n{text}```\nWhat now?\n"),
    "Markdown's escapes": _sub(r"(?<=\w)_(?=\w)", r"\\_"),
}
_BYTES: dict[str, Damage] = {
    "CRLF": lambda data: data.replace(b"\n", b"\r\n"),
    "CR": lambda data: data.replace(b"\n", b"\r"),
    "BOM": lambda data: b"\xef\xbb\xbf" + data,
    "UTF-16LE": lambda data: b"\xff\xfe" + _utf16(data, "le"),
    "UTF-16BE": lambda data: b"\xfe\xff" + _utf16(data, "be"),
    "UTF-16LE without BOM": lambda data: _utf16(data, "le"),
    "UTF-16BE without BOM": lambda data: _utf16(data, "be"),
}
_PACKED: dict[str, Damage] = {"gzip": gzip.compress, "zstd": zstd.compress}


def _utf16(data: bytes, order: str) -> bytes:
    return data.decode("utf-8", "replace").encode(f"utf-16-{order}")


STAGES: tuple[dict[str, Damage], ...] = (_CONTENT, _SHAPE, _LINES, _BYTES, _PACKED)
"""Damages in the order in which a text gets them; of `_BYTES` and `_PACKED` one at most each."""
DAMAGES: dict[str, Damage] = {name: damage for stage in STAGES for name, damage in stage.items()}


def apply(names: Iterable[str], data: bytes) -> bytes:
    """Put these damages on a dump, each stage after the one before."""
    chosen = list(names)
    for stage in STAGES:
        for name in chosen:
            if name in stage:
                data = stage[name](data)
    return data


_NUMBERED = re.compile(r"(\s*)#(\d+)( .*)", re.S)
_OTHER_FRAME = re.compile(r"\s*(?:\* )?frame #\d+: ")
_COUNTED = re.compile(r"(\s*)(\d+)(\s+)([^\s,;][^;]*,.*)$")
_COLLAPSED = re.compile(r"(\S[^;\n]*;.*) (\d+)$")
_HEAD = re.compile(r"Thread \d+ \(|TID \d+:|\s*(?:\* )?thread #\d|--Thread \d+ has waited")
_HEADS = re.compile(rf"^(?={_HEAD.pattern}|---TRANSACTION |---+$|[A-Z ]{{5,}}$)", re.M)
_UNKNOWN = ("zq_step", "zq::Plan::advance", "zq_dispatch_inner", "zq_apply_one")


def _names(line: str) -> tuple[str, list[str], str, str] | None:
    """Return start, frames, separator and end of a line that is a whole stack."""
    if (match := _COUNTED.fullmatch(line)) and " " not in match.group(4).partition(",")[0]:
        return "".join(match.group(1, 2, 3)), _split(match.group(4)), ",", ""
    if match := _COLLAPSED.fullmatch(line):
        return "", match.group(1).split(";"), ";", f" {match.group(2)}"
    return None


def _split(text: str) -> list[str]:
    """Split at the commas that are in no bracket."""
    out = [""]
    depth = 0
    for char in text:
        if char == "," and depth <= 0:
            out.append("")
            continue
        depth += (char in "<(") - (char in ">)")
        out[-1] += char
    return out


def _renumbered(lines: Iterable[str]) -> Iterator[str]:
    """Number the frames of each thread without gaps."""
    after = 0
    for line in lines:
        match = _NUMBERED.fullmatch(line)
        if match is None:
            if _HEAD.match(line) or not line.strip():
                after = 0
            yield line
            continue
        number = int(match.group(2))
        if number == 0 and not match.group(3).lstrip().startswith("zq"):
            after = 0
        yield f"{match.group(1)}#{after}{match.group(3)}"
        after += 1


def drop_frames(text: str, share: float, rng: random.Random, *, gaps: bool = False) -> str:
    """Drop this share of the frames; ``gaps``: the numbers of the others stay as they were.

    A wait in a report of InnoDB has no frames: there, this share of its lines goes.
    """
    status = "INNODB MONITOR OUTPUT" in text or "seconds the semaphore" in text
    out: list[str] = []
    dropping = False
    for line in text.split("\n"):
        frame = _NUMBERED.fullmatch(line) or _OTHER_FRAME.match(line)
        if frame or (status and line.strip()):
            dropping = rng.random() < share
        elif dropping and not (line[:1] in " \t" and line.strip()):
            dropping = False
        if dropping:
            continue
        stack = None if frame else _names(line)
        if stack is not None:
            start, names, separator, end = stack
            left = [name for name in names if rng.random() >= share] or names[:1]
            line = f"{start}{separator.join(left)}{end}"
        out.append(line)
    return "\n".join(out if gaps else _renumbered(out))


def insert_unknown(text: str, share: float, rng: random.Random) -> str:
    """Put a frame of an unknown function before this share of the frames."""
    out: list[str] = []
    for line in text.split("\n"):
        match = _NUMBERED.fullmatch(line)
        if match is not None:
            if rng.random() < share and match.group(2) != "0":
                form = "0x000055d0aa{:06x} in {} ()" if " in " in line else "0x000055d0aa{:06x} {}"
                body = form.format(rng.randrange(1 << 24), rng.choice(_UNKNOWN))
                out.append(f"{match.group(1)}#{match.group(2)}  {body}")
            out.append(line)
            continue
        stack = _names(line)
        if stack is not None:
            start, names, separator, end = stack
            more: list[str] = []
            for at, name in enumerate(names):
                if at and rng.random() < share:
                    more.append(rng.choice(_UNKNOWN))
                more.append(name)
            line = f"{start}{separator.join(more)}{end}"
        out.append(line)
    return "\n".join(_renumbered(out))


def remove_threads(text: str, share: float, rng: random.Random) -> str:
    """Remove this share of the threads; of a counted stack, of its count."""
    out: list[str] = []
    for block in _HEADS.split(text):
        if _HEAD.match(block) or block.startswith("---TRANSACTION "):
            if rng.random() >= share:
                out.append(block)
            continue
        lines = []
        for line in block.split("\n"):
            stack = _names(line)
            if stack is None:
                lines.append(line)
                continue
            start, names, separator, end = stack
            number = end if separator == ";" else start
            count = int(number)
            left = sum(rng.random() >= share for _ in range(min(count, 10_000)))
            if count > 10_000:
                left = round(count * (1 - share))
            if left:
                now = number.replace(str(count), str(left))
                parts = (start, separator.join(names), now) if end else (now, ",".join(names), "")
                lines.append("".join(parts))
        out.append("\n".join(lines))
    return "".join(out)


def rename(text: str, pairs: Mapping[str, Sequence[str]], rng: random.Random) -> str:
    """Give each function that has other names in other versions one of these."""
    if not pairs:
        return text
    known = {name: rng.choice(list(others)) for name, others in pairs.items() if others}

    def renamed(found: re.Match[str]) -> str:
        scope, name = "", found[0]
        while name:
            if name in known:
                return scope + known[name]
            outer, colons, name = name.partition("::")
            scope += outer + colons
        return found[0]

    return re.sub(r"[A-Za-z_][\w:~]*\w", renamed, text)
