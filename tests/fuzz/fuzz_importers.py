# SPDX-License-Identifier: Apache-2.0
"""Fuzz one importer by coverage: ``fuzz_importers.py FORMAT [libFuzzer's options] [CORPUS]``.

Needs atheris. ``-runs=N -seed=S`` make it end, and repeat; a finding is written to ``crash-*``.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import atheris

with atheris.instrument_imports(include=["stallscope.analyzers"]):
    from stallscope.analyzers import catalog, engine, importers
    from stallscope.analyzers.importers import gdb

from stallscope.base.errors import StallscopeError
from stallscope.model.capture import Capture

FORMATS = {"gdb": gdb.load, **{known.name: known.load for known in importers.FORMATS}}


def main() -> None:
    """Fuzz the format that the first argument names."""
    name = sys.argv.pop(1) if len(sys.argv) > 1 else ""
    if name not in FORMATS:
        sys.exit(f"name one of: {', '.join(FORMATS)}")
    load = FORMATS[name]
    signatures = catalog.load()

    def one_input(data: bytes) -> None:
        message = ""
        captures: list[Capture] = []
        try:
            captures, _ = load(data.decode("utf-8", "replace"), "fuzz")
        except StallscopeError as error:
            message = str(error)
        assert "\n" not in message
        for capture in captures:
            engine.analyze(capture, signatures)

    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
