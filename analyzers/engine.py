# SPDX-License-Identifier: Apache-2.0
"""Analyze a Capture: who waits for whom, and which signature matches. docs/verdict.md explains the
confidence; keep it up to date.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from stallscope.analyzers import (
    age,
    answers,
    cpu,
    endings,
    graph,
    groups,
    naming,
    persistence,
    server,
    subsystems,
    verdict,
    waits,
)
from stallscope.analyzers.analysis import Analysis, Moment, WaiterGroup
from stallscope.analyzers.catalog import Catalog
from stallscope.analyzers.graph import Graph
from stallscope.analyzers.merge import Merged, merge
from stallscope.analyzers.pool import collect
from stallscope.analyzers.scene import Scene
from stallscope.analyzers.shares import shares
from stallscope.analyzers.stacks import Shapes, Stacks
from stallscope.model.capture import Capture

__all__ = ["Options", "analyze", "analyze_together"]


MOST_PLACES = 10


class Options(msgspec.Struct, frozen=True):
    """``grouping``: what makes a group.

    ``min_confidence``: findings below it are left out.
    """

    grouping: groups.Grouping = groups.Grouping()
    min_confidence: float = 0.4
    max_findings: int = 20
    moments: bool = False
    """Keep what all threads did in each capture."""
    fit: naming.Fit | None = None
    """What the confidence is made with; None: the package's own."""


class _View(NamedTuple):
    """One capture, with what is known of its threads by themselves."""

    capture: Capture
    stacks: Stacks
    states: tuple[str, ...]
    graph: Graph
    cycles: tuple[tuple[int, ...], ...]


def analyze(capture: Capture, catalog: Catalog, *, options: Options | None = None) -> Analysis:
    """Analyze one capture, or the burst that it begins; no finding is a normal result."""
    return analyze_together([capture], catalog, options=options)


def analyze_together(
    captures: Sequence[Capture], catalog: Catalog, *, options: Options | None = None
) -> Analysis:
    """Draw one verdict from captures of one server, at least one, and the bursts that they begin.

    Threads are followed from capture to capture by their TIDs, in the order of time.
    """
    options = options or Options()
    captures = _moments(captures)
    shapes = Shapes(catalog)
    views = [_view(capture, shapes, catalog) for capture in captures]
    pool = use = None
    follows: Sequence[persistence.Persistence | None] = [None]
    if len(views) > 1:
        stacks = [view.stacks for view in views]
        pool = collect(captures, stacks, [view.states for view in views], catalog)
        follows = persistence.follow(captures)
    scenes = [
        Scene(
            capture=view.capture,
            catalog=catalog,
            stacks=view.stacks,
            states=view.states,
            graph=view.graph,
            cycles=view.cycles,
            pool=pool,
            persistence=followed,
        )
        for view, followed in zip(views, follows, strict=True)
    ]
    fit = options.fit or naming.load()
    each = [verdict.findings(scene, fit) for scene in scenes]
    found = Merged(each[0], {}) if pool is None else merge(scenes, each, pool)
    findings = verdict.order(found.findings, catalog, options.min_confidence)
    if pool is not None:
        named = {finding.signature for finding in findings}
        use = cpu.use(captures, [view.stacks for view in views], catalog, named)
    findings = answers.placed(findings, answers.findings(scenes[-1], fit.most), scenes[-1])
    at = found.shown.get(findings[0].signature, 0) if findings else 0
    analysis = _analysis(scenes[at], options)
    return msgspec.structs.replace(
        analysis,
        capture=_shown(captures, at),
        findings=tuple(findings[: options.max_findings]),
        cpu=use,
        captures=len(captures),
        moments=tuple(_moment(view, catalog) for view in views) if options.moments else (),
        age=age.of(scenes[at], findings[0]) if findings else None,
        endings=endings.of(scenes[at], findings[0], analysis.server, analysis.version)
        if findings
        else (),
    )


def _moments(captures: Sequence[Capture]) -> Sequence[Capture]:
    """Return the captures of all bursts; these are in the order of time, where all have one. The
    threads that serve stallscope itself are left out: they are no part of what is looked for."""
    if all(capture.time_ns is not None for capture in captures):
        captures = sorted(captures, key=lambda capture: capture.time_ns or 0)
    return [_without_own(moment) for capture in captures for moment in capture.moments]


def _without_own(capture: Capture) -> Capture:
    if not any(thread.own for thread in capture.threads):
        return capture
    others = tuple(thread for thread in capture.threads if not thread.own)
    return msgspec.structs.replace(capture, threads=others)


def _view(capture: Capture, shapes: Shapes, catalog: Catalog) -> _View:
    stacks = Stacks(capture, shapes)
    states = tuple(
        waits.state(
            thread,
            shape.wait or waits.syscall_wait(thread, catalog),
            idle=shape.idle is not None,
            leafless=shape.leafless,
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
    return _View(capture, stacks, states, links, links.cycles())


def _moment(view: _View, catalog: Catalog) -> Moment:
    ran: Counter[tuple[str, ...]] = Counter()
    for sample, shape in zip(view.capture.samples, view.stacks.samples, strict=True):
        ran[shape.frames] += sample.count
    return Moment(
        time_ns=view.capture.time_ns,
        groups=groups.group(view.capture, view.stacks, view.states, catalog),
        ran=tuple((count, frames) for frames, count in ran.most_common()),
    )


def _shown(captures: Sequence[Capture], at: int) -> Capture:
    """Return the capture that shows the verdict, with the facts about all of them."""
    first, shown = captures[0], captures[at]
    if len(captures) == 1:
        return first
    notes = {note.code: note for capture in captures for note in capture.notes}
    return msgspec.structs.replace(
        shown,
        notes=tuple(notes.values()),
        trigger=first.trigger,
        path=first.path,
        burst=first.burst,
        stopped_ns=max(capture.stopped_ns for capture in captures),
    )


def _waiting_in(scene: Scene) -> tuple[WaiterGroup, ...]:
    """Return where threads wait that have something to do; not those that users let wait, and of a
    burst not those whose wait the captures beside this one do not show: it was over at once."""
    runs = scene.persistence.runs if scene.persistence is not None else None
    asked = scene.catalog.asked
    places: Counter[tuple[str, ...]] = Counter()
    for index in scene.active:
        if scene.states[index] != waits.WAITING or scene.shape(index).present & asked:
            continue
        if runs is None or runs[index] != 1:
            places[scene.significant(index)] += scene.capture.threads[index].count
    return tuple(WaiterGroup(count, frames) for frames, count in places.most_common(MOST_PLACES))


def _analysis(scene: Scene, options: Options) -> Analysis:
    """Return what one capture shows, without findings."""
    capture = scene.capture
    name, version = server.identify(capture, scene.stacks, scene.catalog)
    return Analysis(
        capture=capture,
        findings=(),
        groups=groups.group(capture, scene.stacks, scene.states, scene.catalog, options.grouping),
        states=tuple(scene.states),
        places=tuple(scene.significant(index) for index in range(len(capture.threads))),
        edges=scene.graph.edges,
        cycles=tuple(tuple(capture.threads[i].tid for i in cycle) for cycle in scene.cycles),
        server=name,
        version=version,
        waiting_in=_waiting_in(scene),
        subsystems=shares(capture, scene.stacks, scene.states, subsystems.load()),
    )
