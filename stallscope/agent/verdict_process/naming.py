# SPDX-License-Identifier: Apache-2.0
"""Name one capture: write its file of sessions, and keep the first finding."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from stallscope.agent.verdict_process import Together, VerdictAnswer, VerdictRequest
from stallscope.analyzers import catalog, engine
from stallscope.analyzers.analysis import Analysis, Blocker
from stallscope.base.errors import StallscopeError
from stallscope.base.text import one_line
from stallscope.fleet.analysis import facts_of
from stallscope.model import capturefile, sessionsfile
from stallscope.model.capture import Capture
from stallscope.model.incident import Verdict
from stallscope.model.sessions import Sessions, annotate, redact
from stallscope.reporters import firstlines
from stallscope.reporters.sentence import Speaker
from stallscope.reporters.sessions import session, statement
from stallscope.server.statements import normalize

__all__ = ["name_capture", "name_together", "verdict_of"]


def name_capture(
    request: VerdictRequest, signatures: catalog.Catalog
) -> tuple[VerdictAnswer, Capture | None]:
    """Write the sessions of one capture, and analyze it with them; return it where it can be
    read."""
    path = Path(request.path)
    try:
        capture = capturefile.read(path)
    except (StallscopeError, MemoryError) as error:
        return _failed(request, error), None
    if request.known:
        return VerdictAnswer(request.path), capture
    missing: str | None = None
    notes: tuple[str, ...] = ()
    try:
        if request.sessions is not None:
            capture, missing, notes = _with_sessions(capture, request.sessions, path)
        analysis = engine.analyze(capture, signatures)
    except (StallscopeError, MemoryError) as error:
        return _failed(request, error), None
    answer = VerdictAnswer(
        request.path,
        verdict_of(analysis),
        sessions=missing,
        notes=notes,
        version=None if analysis.version is None else one_line(analysis.version, 100),
    )
    return answer, capture


def name_together(captures: Sequence[Capture], signatures: catalog.Catalog) -> Together:
    """Return the verdict of all captures of one incident, and the facts of the same analysis."""
    if not captures:
        return Together(None)
    analysis = engine.analyze_together(captures, signatures)
    facts = facts_of(analysis)
    verdict = verdict_of(analysis)
    if verdict is None:
        return Together(None, facts)
    lines = tuple(line.text for line in firstlines.render(analysis, firstlines.COLUMNS))
    return Together(msgspec.structs.replace(verdict, lines=lines), facts)


def _failed(request: VerdictRequest, error: Exception) -> VerdictAnswer:
    return VerdictAnswer(request.path, error=one_line(str(error) or "out of memory"))


def _with_sessions(
    capture: Capture, sessions: Sessions, path: Path
) -> tuple[Capture, str | None, tuple[str, ...]]:
    """Write the file of sessions; return why threads have no connection, None where they have, and
    what else is to be noted."""
    sessions = redact(sessions, normalize)
    known = len(capture.notes)
    annotated = annotate(capture, sessions)
    new = [note.message for note in annotated.notes[known:]]
    notes = sessions.notes
    why = [message for message in new if message not in notes]
    if sessions.seen:
        notes, why = (*notes, *why), []
    try:
        sessionsfile.write(capture, sessions, path)
    except StallscopeError as error:
        why.append(str(error))
    return annotated, one_line("; ".join(why)) or None, notes


def verdict_of(analysis: Analysis) -> Verdict | None:
    """Return the first finding, as incidents record it."""
    if not analysis.findings:
        return None
    finding = analysis.findings[0]
    ending = analysis.endings[0] if analysis.endings else None
    blocker = None if finding.blocker is None else _who(analysis, finding.blocker)
    return Verdict(
        signature=finding.signature,
        title=one_line(finding.title, 200),
        confidence=round(finding.confidence, 3),
        threads=finding.threads,
        blocker=blocker,
        statement=_statement(analysis, finding.blocker),
        remedy=one_line(finding.remedies[0], 300) if finding.remedies else None,
        share=round(finding.impact.share, 3),
        ending=one_line(ending.statement, 500) if ending is not None else None,
        effect=one_line(firstlines.effect_text(analysis, ending), 300)
        if ending is not None
        else None,
    )


def _statement(analysis: Analysis, blocker: Blocker | None) -> str | None:
    """Return what the blocker runs; its literals are gone since the sessions were written."""
    if blocker is None or blocker.thread is None:
        return None
    return statement(analysis.capture.threads[blocker.thread], 300) or None


def _who(analysis: Analysis, blocker: Blocker) -> str:
    """Return the blocker with its connection, which identifies it on the server."""
    likely = "" if blocker.certain else " (likely)"
    parts = [Speaker(analysis).thread(blocker.tid) + likely, blocker.state]
    if blocker.thread is not None:
        parts.append(session(analysis.capture.threads[blocker.thread]))
    return one_line(", ".join(filter(None, parts)), 200)
