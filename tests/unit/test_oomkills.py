# SPDX-License-Identifier: Apache-2.0
"""Whether the OOM killer ended a server: the kernel's words and counters, from a made /proc."""

from __future__ import annotations

from pathlib import Path

import pytest

from stallscope.collectors.host.oomkills import OomKills, logged

HEAD = "nodemask=(null),cpuset=/,mems_allowed=0"
MEMCG = f"oom-kill:constraint=CONSTRAINT_MEMCG,{HEAD},oom_memcg=/db,task_memcg=/db/x"
HOST = f"oom-kill:constraint=CONSTRAINT_NONE,{HEAD},global_oom,task_memcg=/db"


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (f"{MEMCG},task=mysqld,pid=7,uid=1", "memory limit of cgroup /db"),
        (f"{HOST},task=mysqld,pid=7,uid=1", "the host had no memory left"),
        (
            f"{HOST},task=mysqld,pid=7,uid=1".replace(
                "CONSTRAINT_NONE", "CONSTRAINT_MEMORY_POLICY"
            ),
            "no memory left on the NUMA nodes that it may use",
        ),
        (f"{MEMCG},task=mysqld,pid=77,uid=1", None),
        (f"{MEMCG},task=x,pid=7,uid=1,pid=8,uid=0", None),
        (f"x {MEMCG},task=mysqld,pid=7,uid=1", None),
        ("Out of memory: Killed process 7 (mysqld)", None),
    ],
)
def test_what_the_kernel_logs(record: str, words: str | None) -> None:
    assert logged(record, 7) == (words and f"killed by the OOM killer ({words})")


def counters(folder: Path, *, old: bool, inner: int, outer: int, host: int) -> Path:
    """Make a /proc of process 7, in a group within a group."""
    name = "memory.oom_control" if old else "memory.events"
    for group, kills in (("db", outer), ("db/x", inner)):
        (folder / "mount" / group).mkdir(parents=True, exist_ok=True)
        (folder / "mount" / group / name).write_text(f"low 0\noom_kill {kills}\n")
    mount = f"41 31 0:38 /pod {folder}/mount rw - cgroup{'' if old else 2} c rw,memory\n"
    files = {
        "7/cgroup": "4:memory:/pod/db/x\n0::/\n" if old else "0::/pod/db/x\n",
        "self/mountinfo": mount,
        "vmstat": f"pswpin 0\noom_kill {host}\n",
    }
    for path, text in files.items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(text)
    return folder


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize(
    ("now", "words"),
    [
        ({"inner": 1, "outer": 1, "host": 1}, ""),
        ({"inner": 2, "outer": 2, "host": 2}, "/pod/db/x"),
        ({"inner": 1, "outer": 2, "host": 2}, "/pod/db"),
        ({"inner": 1, "outer": 1, "host": 2}, None),
    ],
)
def test_where_the_log_is_closed_counters_say_it(
    tmp_path: Path, old: bool, now: dict[str, int], words: str | None
) -> None:
    proc = counters(tmp_path, old=old, inner=1, outer=1, host=1)
    kills = OomKills(7, proc=proc, log=tmp_path / "none")
    counters(tmp_path, old=old, **now)
    begin = "killed by the OOM killer, as it seems: it ended a process of cgroup "
    assert kills.of_server() == (begin + words if words else words)
    kills.close()


def test_nothing_is_known(tmp_path: Path) -> None:
    assert OomKills(7, proc=tmp_path, log=tmp_path / "none").of_server() is None
