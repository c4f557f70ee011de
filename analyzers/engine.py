# SPDX-License-Identifier: Apache-2.0
"""Analyze a Capture: who waits for whom, and which signature matches. docs/verdict.md explains the
confidence; keep it up to date.
"""

from __future__ import annotations

import msgspec

from stallscope.analyzers import generic, graph, groups, server, subsystems, verdict, waits
from stallscope.analyzers.analysis import Analysis
from stallscope.analyzers.catalog import Catalog
from stallscope.analyzers.scene import Scene
from stallscope.analyzers.stacks import Stacks
from stallscope.model.capture import Capture

__all__ = ["Options", "analyze"]


class Options(msgspec.Struct, frozen=True):
    """``grouping``: what makes a group.

    ``min_confidence``: findings below it are left out.
    """

    grouping: groups.Grouping = groups.Grouping()
    min_confidence: float = 0.4
    max_findings: int = 20


def analyze(capture: Capture, catalog: Catalog, *, options: Options | None = None) -> Analysis:
    """Analyze one capture; no finding is a normal result."""
    options = options or Options()
    stacks = Stacks(capture, catalog)
    states = tuple(
        waits.state(
            thread,
            shape.wait or waits.syscall_wait(thread, catalog),
            idle=shape.idle is not None,
        )
        for thread, shape in zip(capture.threads, stacks.shapes, strict=True)
    )
    links = graph.build(capture)
    owners = {edge.owner for edge in links.edges}
    # The owner of a lock that others wait for is not idle.
    states = tuple(
        waits.WAITING if state == waits.UNSEEN and index in owners else state
        for index, state in enumerate(states)
    )
    cycles = links.cycles()
    name, version = server.identify(capture, stacks, catalog)

    scene = Scene(
        capture=capture, catalog=catalog, stacks=stacks, states=states, graph=links, cycles=cycles
    )
    findings = [*verdict.findings(scene), *generic.findings(scene)]
    findings = verdict.order(findings, catalog, options.min_confidence)
    return Analysis(
        capture=capture,
        findings=tuple(findings[: options.max_findings]),
        groups=groups.group(capture, stacks, states, catalog, options.grouping),
        states=states,
        places=tuple(scene.significant(index) for index in range(len(capture.threads))),
        edges=links.edges,
        cycles=tuple(tuple(capture.threads[i].tid for i in cycle) for cycle in cycles),
        server=name,
        version=version,
        subsystems=subsystems.shares(capture, stacks, states, subsystems.load()),
    )
