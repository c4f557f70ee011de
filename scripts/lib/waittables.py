# SPDX-License-Identifier: Apache-2.0
"""Make wait_tables.h of stallscope/model/waitkinds.py: ``python waittables.py TABLE OUT``.

``meson setup`` runs this, with whatever Python is there.
"""

from __future__ import annotations

import runpy
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

__all__ = ["header", "main"]

_TOP = """\
/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Made of stallscope/model/waitkinds.py by scripts/lib/waittables.py. */
#ifndef STALL_WAIT_TABLES_H
#define STALL_WAIT_TABLES_H
"""
_HELP_INDENT = 25  # of an option's text in the help of stallscope-probe
_HELP_WIDTH = 80


def _constant(prefix: str, name: str) -> str:
    return f"{prefix}_{name.upper().replace('-', '_')}"


def _enum(name: str, constants: Iterable[str], end: str) -> str:
    return f"enum {name} {{\n" + "".join(f"\t{one},\n" for one in (*constants, end)) + "};\n"


def _mask(name: str, prefix: str, kinds: Iterable[str]) -> str:
    bits = " | ".join(f"1U << {_constant(prefix, kind)}" for kind in kinds)
    return f"#define {name} ({bits})\n"


def _rows(name: str, rows: Iterable[str]) -> str:
    return f"#define {name} \\\n\t" + ", \\\n\t".join(rows) + "\n"


def _wait(kind: Any) -> str:
    return _constant("STALL_WAIT", "futex" if kind.group == "lock" else kind.name)


def _role(kind: Any) -> str:
    has_role = kind.group == "lock" and kind.name != "futex"
    return _constant("STALL_ROLE", kind.name if has_role else "unknown")


def _help(table: dict[str, Any]) -> str:
    text = f"only these: {', '.join(table['KINDS'])}; or a group: {', '.join(table['GROUPS'])}"
    lines = textwrap.wrap(text, _HELP_WIDTH - _HELP_INDENT, break_on_hyphens=False)
    joined = ("\\n" + " " * _HELP_INDENT).join(lines)
    return f'#define STALL_WATCH_KINDS_HELP "{joined}\\n"\n'


def header(path: Path) -> str:
    """Return the header of the table in a file."""
    table = runpy.run_path(str(path))
    kinds = table["TABLE"]
    calls = [(kind, call) for kind in kinds for call in kind.calls]
    causes, source = table["CAUSES"], table["SOURCE_LOST"]
    return "\n".join(
        (
            _TOP,
            "/* A wait on a futex is of one kind, and of a role. */",
            _enum("stall_wait_kind", dict.fromkeys(["STALL_WAIT_FUTEX", *map(_wait, kinds)]),
                  "STALL_WAIT_KINDS"),
            _enum("stall_wait_role", dict.fromkeys(["STALL_ROLE_UNKNOWN", *map(_role, kinds)]),
                  "STALL_ROLES"),
            "/* The kinds as people read them. */",
            _enum("stall_watch_kind", (_constant("STALL_WATCH", k.name) for k in kinds),
                  "STALL_WATCH_KINDS"),
            _enum("stall_wait_lost", (_constant("STALL_LOST", c.name) for c in source),
                  "STALL_LOST_CAUSES"),
            "/* In stallscope-probe, behind the source. */",
            _enum("stall_watch_lost",
                  (_constant("STALL_WATCH_LOST", c.name) for c in causes[len(source):]),
                  "STALL_WATCH_LOST_CAUSES"),
            "/* Sets of kinds: 1 << kind. */",
            _mask("STALL_WAIT_WITH_BYTES", "STALL_WAIT", (k.name for k in kinds if k.bytes)),
            _mask("STALL_WATCH_IDLE", "STALL_WATCH", (k.name for k in kinds if k.idle)),
            _mask("STALL_WATCH_NAMED", "STALL_WATCH", (k.name for k in kinds if k.named)),
            _mask("STALL_WATCH_SHOWN", "STALL_WATCH", (k.name for k in kinds if k.shown)),
            "/* {name, group, enum stall_wait_kind, enum stall_wait_role}. */",
            _rows("STALL_WATCH_KIND_TABLE",
                  (f'{{"{k.name}", "{k.group}", {_wait(k)}, {_role(k)}}}' for k in kinds)),
            _rows("STALL_LOST_NAMES", (f'"{cause.name}"' for cause in source)),
            _rows("STALL_WATCH_LOST_NAMES", (f'"{cause.name}"' for cause in causes[len(source):])),
            "/* {number, {enum stall_call_how, enum stall_wait_kind}} of each system call. */",
            _rows("STALL_WAIT_CALL_TABLE",
                  (f"{{{call.number or 'SYS_' + call.name},"
                   f" {{STALL_CALL_{call.how}, {_wait(kind)}}}}}" for kind, call in calls)),
            _help(table),
            "#endif\n",
        )
    )  # fmt: skip


def main(table: Path, out: Path) -> None:
    """Write the header, unless it is there: what includes it is built again when it changes."""
    text = header(table)
    out.parent.mkdir(parents=True, exist_ok=True)
    if not out.exists() or out.read_text() != text:
        out.write_text(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
