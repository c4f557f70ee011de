# SPDX-License-Identifier: Apache-2.0
"""The probe, and what it has found to work by trying it."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from stallscope import probe
from stallscope.collectors.doctor.checks import Check
from stallscope.errors import StallscopeError

__all__ = ["features"]

SCHEMA = "stallscope.features/1"
SECONDS = 60.0
_OPTIONAL = "inproc"


class _Feature(msgspec.Struct):
    ok: bool
    why: str | None = None
    mend: str | None = None


class _Features(msgspec.Struct):
    schema: str
    features: dict[str, _Feature]
    kernel: str | None = None


def features() -> Iterator[Check]:
    """Ask the probe; a feature that does not work is told with what the probe advises."""
    try:
        path = probe.find()
        yield Check(probe.PROBE, "ok", str(path))
        data = probe.run(["features"], seconds=SECONDS)
        found = msgspec.json.decode(data, type=_Features)
    except probe.ProbeMissingError as error:
        mend = "./scripts/setup, or meson setup build && meson compile -C build"
        yield Check(probe.PROBE, "missing", str(error), mend)
        return
    except (StallscopeError, msgspec.MsgspecError, UnicodeError) as error:
        yield Check("features", "missing", f"the probe could not tell: {error}", "build it anew")
        return
    if found.schema != SCHEMA:
        what = f"the probe speaks {found.schema}, not {SCHEMA}"
        yield Check("features", "missing", what, "build probe and package from one version")
        return
    if found.kernel:
        yield Check("kernel", "ok", found.kernel)
    for name, feature in found.features.items():
        if name == _OPTIONAL and not feature.ok:
            continue  # a host without such a server lacks nothing; what is there, other checks say
        if feature.ok:
            yield Check(name, "ok", feature.why or "works")
        else:
            advice = feature.mend and probe.with_path(feature.mend, path)
            yield Check(name, "degraded", feature.why or "does not work here", advice)
