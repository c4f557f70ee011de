# SPDX-License-Identifier: Apache-2.0
"""Stalls that the server's answers and counters show, and no stack: all connections are used, a
login hangs, an applier is stopped.

A number that was not sampled is unknown: it shows nothing, and is no sign of calm.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from stallscope.analyzers import hoststates
from stallscope.analyzers.analysis import Finding, Impact
from stallscope.analyzers.catalog import Catalog
from stallscope.analyzers.hoststates import Said
from stallscope.analyzers.scene import Scene
from stallscope.analyzers.waits import IDLE
from stallscope.model import sampled
from stallscope.model.capture import Thread

__all__ = ["LAG_SECONDS", "findings", "placed"]

LEAST_LOGINS = 3
"""Logins at once that a server works on are ordinary up to here."""
LEAST_QUEUED = 4
LOGIN_SECONDS = 1.0
LAG_SECONDS = 60.0
NAMED = 0.5
"""The confidence from which on a finding of the stacks stands before these."""
PILE = 0.2
"""The share of all connections that, waiting, is a pile behind a stall, however few they are."""
MOST_ACCOUNTS = 3

Values = Mapping[str, float]


def findings(scene: Scene, most: float) -> list[Finding]:
    """Return a finding for each state that the sampled numbers of the capture show, the worst
    first. ``most``: the confidence of what is certain."""
    values = sampled.of(scene.capture)
    found = []
    read = ((name, read(values, scene)) for name, read in _STATES if values)
    for name, said in (*read, *hoststates.shown(values, sampled.names(scene.capture))):
        signature = scene.catalog.by_id.get(name)
        if signature is None or said is None:
            continue
        found.append(
            Finding(
                signature=name,
                title=signature.title,
                confidence=most,
                threads=0,
                blocker=None,
                waiters=(),
                locks=(),
                chain=(),
                evidence=said.says,
                remedies=said.remedies or signature.remedies,
                references=signature.references,
                meaning=" ".join(signature.meaning.split()),
                impact=Impact(clients=said.clients, root=said.root),
                headline=said.headline,
            )
        )
    return found


def placed(named: Sequence[Finding], answered: Sequence[Finding], scene: Scene) -> list[Finding]:
    """Return both in one order. A stall that the stacks name is the cause of what the server
    answers, where clients pile up behind it: it comes first."""
    if not answered:
        return list(named)
    catalog = scene.catalog
    many = max(2.0, PILE * scene.weight(_sessions(scene)))
    answered = [_with_stacks(finding, named, catalog) for finding in answered]
    names = {name: f.signature for f in answered for name in _also_named(f, catalog)}
    named = [
        msgspec.structs.replace(f, victim_of=names.get(f.victim_of or "", f.victim_of))
        for f in named
        if f.signature not in names
    ]
    roots = {finding.signature for finding in answered}
    causes = [
        f
        for f in named
        if f.whole
        or (
            f.victim_of not in roots
            and f.confidence >= NAMED
            and (f.impact.is_stall or f.threads >= many)
        )
    ]
    first = [f for f in answered if f.impact.root]
    stops = [f for f in answered if f.impact.clients and f not in first]
    rest = [f for f in named if f not in causes]
    return [*first, *causes, *stops, *rest, *(f for f in answered if not f.impact.clients)]


def _also_named(finding: Finding, catalog: Catalog) -> tuple[str, ...]:
    """Return the names under which stacks show the same stall."""
    assert finding.signature is not None
    return (finding.signature, *catalog.by_id[finding.signature].explains)


def _with_stacks(answered: Finding, named: Sequence[Finding], catalog: Catalog) -> Finding:
    """Return the finding with the threads that stacks show to wait for the same, if any."""
    names = _also_named(answered, catalog)
    same = next((finding for finding in named if finding.signature in names), None)
    if same is None:
        return answered
    return msgspec.structs.replace(
        same,
        signature=answered.signature,
        title=answered.title,
        confidence=answered.confidence,
        chain=tuple(
            msgspec.structs.replace(link, signature=answered.signature)
            if link.signature in names
            else link
            for link in same.chain
        ),
        evidence=(*answered.evidence, *same.evidence),
        remedies=answered.remedies,
        references=answered.references,
        meaning=answered.meaning,
        impact=msgspec.structs.replace(
            same.impact, clients=answered.impact.clients, root=answered.impact.root
        ),
        headline=answered.headline,
    )


def _connections(values: Values, scene: Scene) -> Said | None:
    refused = values.get("login.connections_refused")
    limit = values.get("settings.client_connections")
    used = values.get("Threads_connected", values.get("backends.total"))
    held = _sessions(scene)
    if refused:
        if values.get("login.code") == _ACCOUNT_LIMIT:
            return Said(
                "its own login was refused: its account has no connection left",
                tuple(_holders(held, scene)),
            )
        total = scene.weight(held)
        count = f"all {total} connections" if total else "all connections"
        return Said(f"its own login was refused: {count} are used", tuple(_holders(held, scene)))
    if limit is None or used is None or used < limit:
        return None
    return Said(f"all {used:.0f} connections are used", tuple(_holders(held, scene)))


_ACCOUNT_LIMIT = 1203.0  # ER_TOO_MANY_USER_CONNECTIONS


def _refused(values: Values, scene: Scene) -> Said | None:
    text = _REFUSALS.get(int(values.get("login.code", 0)))
    return None if text is None else Said(f"its own login was refused: {text}")


_REFUSALS = {
    1129: "the server has blocked this host after too many aborted handshakes",
    3032: "the server is in offline mode",
}


def _cluster(values: Values, scene: Scene) -> Said | None:
    if values.get("settings.wsrep_on") != 1.0 or values.get("wsrep_ready") != 0.0:
        return None
    size = values.get("wsrep_cluster_size")
    says = () if size is None else (f"nodes that it sees: {size:.0f}",)
    return Said("this node is not part of the primary cluster, and refuses statements", says)


def _flow_control(values: Values, scene: Scene) -> Said | None:
    if not values.get("wsrep_flow_control_active"):
        return None
    queue = values.get("wsrep_local_recv_queue")
    mine = bool(values.get("wsrep_flow_control_requested"))
    says = []
    if mine:
        says.append(f"this node asks for it: {queue or 0:.0f} write sets wait for its appliers")
    else:
        says.append("another node asks for it: look at wsrep_local_recv_queue of each")
    return Said("flow control has paused the cluster: commits wait on all nodes", tuple(says))


def _group_member(values: Values, scene: Scene) -> Said | None:
    members = values.get("group.members")
    if not members:
        return None
    unreachable = values.get("group.unreachable", 0.0)
    if 2 * unreachable >= members:
        lost = f"{unreachable:.0f} of {members:.0f} members are unreachable"
        return Said(f"the group has no majority, and commits wait: {lost}")
    if values.get("group.own_online") == 0.0:
        return Said("this member of the group is not online", clients=False)
    return None


def _group_flow_control(values: Values, scene: Scene) -> Said | None:
    part = values.get("group.flow_control")
    if part is None or part <= 1.0:
        return None
    queues = [
        f"{count:.0f} transactions wait for the {name} of a member"
        for name in ("applier", "certifier")
        if (count := values.get(f"group.{name}_queue"))
    ]
    return Said("flow control of the group slows commits down", tuple(queues))


def _semisync(values: Values, scene: Scene) -> Said | None:
    for side in ("source", "master"):
        waits = values.get(f"Rpl_semi_sync_{side}_wait_sessions")
        clients = values.get(f"Rpl_semi_sync_{side}_clients")
        if waits and clients == 0:
            count = "1 commit waits" if waits == 1 else f"{waits:.0f} commits wait"
            return Said(f"{count} for a replica's acknowledgement, and no replica is connected")
    return None


def _queue(values: Values, scene: Scene) -> Said | None:
    count = values.get("accept.queued")
    if count is None or count <= LEAST_QUEUED:
        return None
    return Said(f"{count:.0f} clients queue at its socket, and it accepts none")


def _logins(values: Values, scene: Scene) -> Said | None:
    count = values.get("processlist.unauthenticated")
    hung = values.get("login.unanswered_s")
    if hung is not None and hung >= LOGIN_SECONDS:
        # Where the host is slow a login is, too: it alone does not show that clients stand still.
        return Said(f"its own login has had no answer for {hung:.1f} s", clients=False)
    if count is None or count <= LEAST_LOGINS:
        return None
    says = []
    if values.get("settings.skip_name_resolve") == 0.0:
        says.append("the server asks DNS for the name of each client (skip_name_resolve is OFF)")
    return Said(f"{count:.0f} clients hang in their login", tuple(says))


def _stopped(values: Values, scene: Scene) -> Said | None:
    stopped = values.get("replication.stopped")
    if not stopped:
        return None
    of = values.get("replication.channels", stopped)
    where = f" in {stopped:.0f} of {of:.0f} channels" if of > 1 else ""
    return Said(f"replication is stopped{where}", tuple(_errors(values)), clients=False)


def _errors(values: Values) -> Iterator[str]:
    for name, code in sorted(values.items()):
        for suffix, thread in ((".sql_errno", "applier"), (".io_errno", "receiver")):
            if name.endswith(suffix):
                channel = name.removeprefix("replication.").removesuffix(suffix)
                yield f"channel {channel}: the {thread} has error {code:.0f}"


def _lagging(values: Values, scene: Scene) -> Said | None:
    lag = values.get("replication.lag_s")
    if lag is None or lag <= LAG_SECONDS or values.get("replication.stopped"):
        return None
    return Said(f"replication is {lag:.0f} s behind", clients=False)


def _read_only(values: Values, scene: Scene) -> Said | None:
    if values.get("settings.offline_mode"):
        return Said("the server is in offline mode: it lets in nobody but administrators")
    if values.get("settings.default_transaction_read_only"):
        text = "transactions are read-only unless they say otherwise"
        return Said(f"{text} (default_transaction_read_only)", clients=False)
    if values.get("settings.innodb_read_only"):
        return Said("InnoDB is read-only: each write fails", clients=False)
    names = [n for n in ("super_read_only", "read_only") if values.get(f"settings.{n}")]
    # A replica is to be read-only; whether this is one must be known.
    if not names or values.get("replication.channels") != 0.0:
        return None
    return Said(f"the server is read-only ({names[0]}), and is no replica", clients=False)


_STATES: tuple[tuple[str, Callable[[Values, Scene], Said | None]], ...] = (
    ("connections-used-up", _connections),
    ("login-refused", _refused),
    ("galera-not-primary", _cluster),
    ("galera-flow-control", _flow_control),
    ("group-no-majority", _group_member),
    ("group-flow-control", _group_flow_control),
    ("semisync-no-replica", _semisync),
    ("accept-queue", _queue),
    ("login-hang", _logins),
    ("replica-stopped", _stopped),
    ("replica-lag", _lagging),
    ("read-only", _read_only),
)


def _sessions(scene: Scene) -> tuple[int, ...]:
    """Return the threads that serve connections of clients."""
    sessions = scene.catalog.sessions
    threads = enumerate(scene.capture.threads)
    known = tuple(i for i, t in threads if t.connection is not None and t.host)
    if known:
        return known
    return tuple(
        index
        for index in range(len(scene.capture.threads))
        if scene.shape(index).present & sessions or _waits_for_client(scene, index)
    )


def _waits_for_client(scene: Scene, index: int) -> bool:
    idle = scene.shape(index).idle
    return idle is not None and idle.session


def _holders(held: Sequence[int], scene: Scene) -> Iterator[str]:
    """Yield who has the connections: accounts, where they are known, and how many are idle."""
    threads = scene.capture.threads
    accounts: Counter[str] = Counter()
    idle: Counter[str] = Counter()
    for index in held:
        name = _account(threads[index])
        accounts[name] += threads[index].count
        if scene.states[index] == IDLE:
            idle[name] += threads[index].count
    for name, count in accounts.most_common(MOST_ACCOUNTS):
        whose = f" of {name}" if name else ""
        rest = f"{idle[name]} of them idle" if idle[name] else "none of them idle"
        yield f"{count} connections{whose}, {rest}"


def _account(thread: Thread) -> str:
    if not thread.host:
        return thread.user or ""
    return f"{thread.user or '?'}@{thread.host}"
