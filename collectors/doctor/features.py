# SPDX-License-Identifier: Apache-2.0
"""The probe, and the features that it found to work."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from stallscope.base.errors import StallscopeError
from stallscope.collectors import probe
from stallscope.collectors.doctor.checks import Check

__all__ = ["features"]

SCHEMA = "stallscope.features/1"
SECONDS = 60.0
_OPTIONAL = "inproc"


class _Feature(msgspec.Struct):
    ok: bool
    why: str | None = None
    fix: str | None = None


class _Features(msgspec.Struct):
    schema: str
    features: dict[str, _Feature]
    kernel: str | None = None


def features() -> Iterator[Check]:
    """Ask the probe; report each feature that does not work with the probe's advice."""
    try:
        path = probe.find()
        yield Check(probe.PROBE, "ok", str(path))
        data = probe.run(["features"], seconds=SECONDS)
        found = msgspec.json.decode(data, type=_Features)
    except probe.ProbeMissingError as error:
        fix = "./scripts/setup, or meson setup build && meson compile -C build"
        yield Check(probe.PROBE, "missing", str(error), fix)
        return
    except (StallscopeError, msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        yield Check("features", "missing", f"the probe could not check: {error}", "build it again")
        return
    if found.schema != SCHEMA:
        what = f"the probe uses {found.schema}, not {SCHEMA}"
        yield Check("features", "missing", what, "build probe and package from the same version")
        return
    if found.kernel:
        yield Check("kernel", "ok", found.kernel)
    for name, feature in found.features.items():
        if name == _OPTIONAL and not feature.ok:
            continue  # nothing is missing on a host without such a server; other checks cover one
        if feature.ok:
            yield Check(name, "ok", feature.why or "works")
        else:
            advice = feature.fix and probe.with_path(feature.fix, path)
            yield Check(name, "degraded", feature.why or "does not work here", advice)
