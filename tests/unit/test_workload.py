# SPDX-License-Identifier: Apache-2.0
"""What status numbers mean: rules, saved files, the report of the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

import pytest

from stallscope.analyzers import statusfile, workload
from stallscope.analyzers.workload import Verdict
from stallscope.base.errors import Exit
from stallscope.collectors.sql import versions
from stallscope.collectors.sql import workload as source
from stallscope.collectors.sql.failures import StatementError
from stallscope.collectors.sql.protocol import SqlSession
from stallscope.main import main
from stallscope.server import innodbnumbers
from stallscope.server.status import StatusSample

BASE = {
    "Uptime": 1000.0,
    "Questions": 5000.0,
    "Connections": 100.0,
    "Threads_running": 2.0,
    "Threads_connected": 9.0,
    "Innodb_rows_read": 10_000.0,
    "Innodb_buffer_pool_reads": 10.0,
    "Innodb_buffer_pool_read_requests": 50_000.0,
    "Innodb_data_reads": 20.0,
    "Innodb_pages_read": 30.0,
    "Innodb_data_pending_reads": 0.0,
    "Innodb_page_size": 16_384.0,
}


def _later(**grown: float) -> dict[str, float]:
    """Return the numbers ten seconds later."""
    return {**BASE, "Uptime": 1010.0} | {k: BASE.get(k, 0.0) + v for k, v in grown.items()}


def _rows(report: workload.Report) -> dict[str, workload.Row]:
    return {row.id: row for row in report.rows}


def _judge(**grown: float) -> dict[str, workload.Row]:
    return _rows(workload.report(StatusSample(BASE), StatusSample(_later(**grown))))


def test_rules_are_whole() -> None:
    ids = [rule.id for rule in workload.rules()]
    assert len(set(ids)) == len(ids)
    for rule in workload.rules():
        assert rule.kind in ("rate", "gauge", "ratio", "share", "use")
        assert rule.group in workload.GROUPS
        assert bool(rule.to) == (rule.kind in ("ratio", "share", "use"))
        assert rule.meaning.endswith(".")
        assert rule.when
        if rule.warning is not None and rule.critical is not None:
            assert (rule.critical < rule.warning) == rule.below


def test_rates_and_ratios() -> None:
    rows = _judge(Questions=1000, Innodb_rows_read=3000, Innodb_data_reads=100, Connections=1)
    assert rows["questions"].rate == 100
    assert rows["questions"].value == 6000
    assert rows["rows-per-question"].value == 3
    assert rows["rows-per-question"].verdict is Verdict.OK
    assert rows["pages-per-read"].value == 0


@pytest.mark.parametrize(
    ("grown", "row", "verdict"),
    [
        ({"Questions": 10, "Innodb_rows_read": 2e6}, "rows-per-question", Verdict.CRITICAL),
        ({"Questions": 100, "Innodb_rows_read": 2e5}, "rows-per-question", Verdict.WARNING),
        (
            {"Innodb_rows_read": 5000, "Innodb_buffer_pool_read_requests": 5e5},
            "requests-per-row",
            Verdict.CRITICAL,
        ),
        (
            {"Innodb_buffer_pool_reads": 500, "Innodb_buffer_pool_read_requests": 2e4},
            "pool-miss-ratio",
            Verdict.WARNING,
        ),
        ({"Threads_running": 200}, "threads-running", Verdict.CRITICAL),
        ({"Innodb_data_pending_reads": 20}, "pending-reads", Verdict.WARNING),
        ({"Connections": 500, "Questions": 500}, "questions-per-connection", Verdict.CRITICAL),
        ({"Connections": 3000, "Questions": 90_000}, "connections", Verdict.WARNING),
    ],
)
def test_when_to_worry(grown: dict[str, float], row: str, verdict: Verdict) -> None:
    assert _judge(**grown)[row].verdict is verdict
    assert _judge()[row].verdict is not verdict


def test_what_a_server_lacks_is_unknown_and_never_0() -> None:
    row = _judge()["aria-log-syncs"]
    assert (row.verdict, row.value, row.rate) == (Verdict.UNKNOWN, None, None)
    assert row.note == "not available on this server"


def test_a_counter_that_is_switched_off_says_how_to_switch_it_on() -> None:
    sample = StatusSample(_later(), missing={"metrics": "disabled: SET GLOBAL x"})
    row = _rows(workload.report(StatusSample(BASE), sample))["deadlocks"]
    assert row.note == "disabled: SET GLOBAL x"


def test_little_work_is_not_judged() -> None:
    row = _judge(Innodb_rows_read=10, Innodb_buffer_pool_read_requests=5000)["requests-per-row"]
    assert row.verdict is Verdict.OK
    assert row.value == 500
    assert "too little activity" in (row.note or "")


def test_nothing_to_divide_by() -> None:
    row = _judge(Questions=0, Innodb_rows_read=5)["rows-per-question"]
    assert row.verdict is Verdict.UNKNOWN


def test_restart_between_two_samples() -> None:
    after = {**BASE, "Uptime": 4.0, "Questions": 40.0}
    report = workload.report(StatusSample(BASE), StatusSample(after))
    assert report.restarted
    assert report.seconds == 4
    assert _rows(report)["questions"].rate == 10


def test_a_clock_that_was_set_back_is_no_restart() -> None:
    """Uptime goes by the wall clock; the connection that answers again is of the same server."""
    after = {**BASE, "Uptime": 4.0, "Questions": 5040.0}
    report = workload.report(
        StatusSample(BASE, 100.0, session=1), StatusSample(after, 110.0, session=1)
    )
    assert not report.restarted
    assert _rows(report)["questions"].rate == 4
    assert workload.report(
        StatusSample(BASE, 100.0, session=1), StatusSample(after, 110.0, session=2)
    ).restarted


class Refusing:
    """A session with a server that refuses all but its status and variables."""

    number = 1
    version = versions.parse("9.7.0", "")

    def __init__(self, error: int, said: str, consumer: list[tuple[str]] | None = None) -> None:
        self._error = StatementError(said, error)
        self._consumer = consumer

    def select(self, sql: str) -> list[tuple[str, ...]]:
        if sql in (source.STATUS, source.VARIABLES):
            return []
        if sql == source.CONSUMER and self._consumer is not None:
            return [*self._consumer]
        raise self._error

    def records(self, sql: str) -> list[dict[str, str]]:
        assert sql == source.METRICS
        raise self._error


@pytest.mark.parametrize(
    ("number", "said", "reason"),
    [
        (1109, "no such table", "not available on this server"),
        (1146, "no such table", "not available on this server"),
        (1227, "you need PROCESS", "you need PROCESS"),
        (3024, "the query took too long", "the query took too long"),
    ],
)
def test_why_a_source_cannot_be_read(number: int, said: str, reason: str) -> None:
    sample = source.sample(cast(SqlSession, Refusing(number, said)))
    assert sample.missing == {
        "innodb": said,
        "metrics": reason,
        "cmp": reason,
        "progress": reason,
    }
    assert sample.session == 1


@pytest.mark.parametrize(
    ("rows", "reason"), [([], "performance_schema is off"), ([("NO",)], "disabled: UPDATE")]
)
def test_why_progress_is_not_reported(rows: list[tuple[str]], reason: str) -> None:
    sample = source.sample(cast(SqlSession, Refusing(1109, "no such table", rows)))
    assert sample.missing["progress"].startswith(reason)


def test_a_counter_that_was_set_back() -> None:
    row = _judge(Questions=-4000)["questions"]
    assert row.verdict is Verdict.UNKNOWN
    assert "reset" in (row.note or "")


def test_one_sample_is_since_the_start() -> None:
    report = workload.report(None, StatusSample(BASE))
    assert report.since_start
    assert _rows(report)["questions"].rate == 5


def test_rows_of_a_server_that_does_not_count_those_of_innodb() -> None:
    first = {k: v for k, v in BASE.items() if k != "Innodb_rows_read"}
    second = {**first, "Uptime": 1010.0, "Handler_read_first": 5.0, "Handler_read_rnd_next": 45.0}
    report = workload.report(
        StatusSample({**first, "Handler_read_first": 0.0}), StatusSample(second)
    )
    row = _rows(report)["rows-read"]
    assert row.rate == 5
    assert "all engines" in (row.note or "")


INNODB = """\
------------------------
LATEST DETECTED DEADLOCK
------------------------
261121  3:04:05
*** (1) TRANSACTION:
Log sequence number 1000500
Last checkpoint at  1000000
History list length 17
3 queries inside InnoDB, 4 queries in queue
"""


def test_numbers_of_the_innodb_status() -> None:
    variables = {"innodb_log_file_size": "500", "innodb_log_files_in_group": "2"}
    assert innodbnumbers.with_share(INNODB, variables) == {
        "innodb.history_list_length": 17,
        "innodb.queries_inside": 3,
        "innodb.queries_queued": 4,
        "innodb.log_sequence": 1000500,
        "innodb.checkpoint": 1000000,
        "innodb.checkpoint_age": 500,
        "innodb.checkpoint_share": 0.5,
    }
    assert "innodb.checkpoint_share" not in innodbnumbers.with_share(INNODB, {})
    assert innodbnumbers.latest_deadlock(INNODB) == "261121  3:04:05"
    assert innodbnumbers.with_share("", {}) == {}


def _table(values: dict[str, float]) -> str:
    rule = "+-----+-----+\n"
    rows = "".join(f"| {name:<30} | {value:<10.0f} |\n" for name, value in values.items())
    return f"{rule}| Variable_name | Value |\n{rule}{rows}| Rsa_key | abc |\n{rule}"


def _tabs(values: dict[str, float]) -> str:
    rows = "".join(f"{name}\t{value:.0f}\n" for name, value in values.items())
    return f"Variable_name\tValue\n{rows}Ssl_cipher\t\n"


def _vertical(values: dict[str, float]) -> str:
    return "".join(
        f"*************************** {i}. row ***************************\n"
        f"Variable_name: {name}\n        Value: {value:.0f}\n"
        for i, (name, value) in enumerate(values.items(), 1)
    )


@pytest.mark.parametrize("form", [_table, _tabs, _vertical])
def test_forms_of_saved_files(form: object) -> None:
    assert callable(form)
    after = _later(Questions=1000)
    assert statusfile.parse(form(BASE)) == [BASE]
    assert statusfile.parse(form(BASE) + form(after)) == [BASE, after]


def test_differences_are_added_up() -> None:
    """``mysqladmin ext -r``: the second table has what changed, also of numbers that never do."""
    second = dict.fromkeys(BASE, 0.0) | {"Uptime": 10.0, "Questions": 1000.0}
    samples = statusfile.parse(_table(BASE) + _table(second) + _table(second))
    assert [sample["Uptime"] for sample in samples] == [1000, 1010, 1020]
    assert [sample["Innodb_page_size"] for sample in samples] == [16_384] * 3
    assert samples[2]["Questions"] == 7000


def test_a_restart_is_no_difference() -> None:
    after = {**BASE, "Uptime": 10.0, "Questions": 50.0}
    assert statusfile.parse(_table(BASE) + _table(after))[1] == after


def test_command_on_two_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    before.write_text(_table(BASE))
    after.write_text(_tabs(_later(Threads_running=300, Questions=1000)))
    assert main(["status", str(before), str(after)]) == Exit.DONE
    text = capsys.readouterr().out
    assert text.startswith("1 critical, 0 warnings, of ")
    assert "critical  Threads running" in text
    assert "Abnormal: Several times the number of CPUs." in " ".join(text.split())
    assert "100/s" in text
    assert main(["status", "--json", str(before), str(after)]) == Exit.DONE
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "stallscope.status/1"
    assert document["seconds"] == 10
    by_id = {row["id"]: row for row in document["rows"]}
    assert by_id["threads-running"]["verdict"] == "critical"
    assert by_id["aria-log-syncs"]["value"] is None


def test_command_on_pt_stalks_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "2026_11_21_14_50_12-mysqladmin"
    path.write_text("".join(_table(BASE | {"Uptime": 1000.0 + i}) for i in range(30)))
    assert main(["status", str(path), "--json"]) == Exit.DONE
    assert json.loads(capsys.readouterr().out)["seconds"] == 29


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["a", "b", "c"], Exit.USAGE, "one or two files"),
        (["a", "-p", "mysqld"], Exit.USAGE, "files or a server (-p)"),
        (["--seconds", "0"], Exit.USAGE, "not a time in seconds"),
        (["/nonexistent"], Exit.FAILED, "cannot read /nonexistent"),
        (["/dev/null"], Exit.FAILED, "no SHOW GLOBAL STATUS in it"),
        (["--defaults-file", "/nonexistent"], Exit.USAGE, "/nonexistent"),
    ],
)
def test_usage_errors(
    arguments: list[str], code: Exit, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", *arguments]) == code
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
