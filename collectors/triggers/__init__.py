# SPDX-License-Identifier: Apache-2.0
"""Triggers: what the agent captures for. docs/triggers.md.

settings = triggerfile.load(path)        # or triggerfile.defaults()
engine = Engine(settings, {"host.cpus": 8})
for fired in engine.feed(sample): ...    # of any collector, a failed one too
engine.breached                          # empty: it is over
"""

from __future__ import annotations
