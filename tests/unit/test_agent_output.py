# SPDX-License-Identifier: Apache-2.0
"""What the agent prints: nobody waits for a stream, and a stream that fails ends nothing."""

from __future__ import annotations

import datetime
import io
import json
import logging
import os
import select
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

import pytest

from stallscope.agent.output import MAX_LINES, LineWriter, lines_to, logging_to
from tests.support.servers.waiting import PATIENCE, wait_until

MORE_THAN_A_PIPE = 1 << 20


@contextmanager
def pipe() -> Iterator[tuple[int, IO[str]]]:
    reading, writing = os.pipe()
    try:
        with open(writing, "w") as stream:
            yield reading, stream
    finally:
        os.close(reading)


def test_a_pipe_that_nobody_reads_delays_nothing() -> None:
    with pipe() as (_, stream):
        with lines_to(stream) as output:
            output.put("x" * MORE_THAN_A_PIPE)
            for _ in range(2 * MAX_LINES):
                output.put("x")
        assert output.dropped >= MAX_LINES - 2
    wait_until(lambda: not output._thread.is_alive(), "without a reader it ends")


def test_a_full_disk_loses_lines_alone() -> None:
    with open("/dev/full", "w") as stream:
        with lines_to(stream) as output:
            output.put("one")
            output.put("two")
        assert output.dropped == 2


def test_it_says_when_nobody_is_left_to_read() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    closed = threading.Event()
    with open(writing, "w") as stream, lines_to(stream) as output:
        output.on_closed = closed.set
        output.put("one")
        assert closed.wait(PATIENCE)


def test_lines_come_whole_and_in_turn() -> None:
    with pipe() as (reading, stream):
        with lines_to(stream) as output:
            for number in range(100):
                output.put(f"line {number}\udc80")
        assert os.read(reading, 1 << 16).decode() == "".join(
            f"line {number}\\udc80\n" for number in range(100)
        )


def logged(log_format: str) -> str:
    stream = io.StringIO()
    logger = logging.getLogger("stallscope.agent.some")
    with logging_to(stream, log_format):
        logger.debug("left out")
        logger.warning("%s: no\nanswer\x1b", "status")
    logger.warning("after it")
    return stream.getvalue()


def test_a_line_of_the_log_is_for_people() -> None:
    time, _, rest = logged("text").partition(" ")
    assert datetime.datetime.fromisoformat(time).tzinfo is datetime.UTC
    assert rest == "stallscope: warning: status: no answer\\x1b\n"


def test_levels() -> None:
    stream = io.StringIO()
    logger = logging.getLogger("stallscope.agent.some")
    with logging_to(stream, level="error"):
        logger.warning("left out")
        logger.error("kept")
    with logging_to(stream, level="debug"):
        logger.debug("kept, too")
    said = [line.partition(" stallscope: ")[2] for line in stream.getvalue().splitlines()]
    assert said == ["error: kept", "kept, too"]


def test_a_traceback_is_one_line() -> None:
    stream = io.StringIO()
    with logging_to(stream):
        try:
            raise ValueError("a\nb")
        except ValueError:
            logging.getLogger("stallscope.agent").exception("it failed")
    (line,) = stream.getvalue().splitlines()
    assert "it failed; Traceback" in line
    assert line.endswith("| ValueError: a | b")


def test_a_record_that_cannot_be_formatted_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    # pytest's own handler would raise.
    monkeypatch.setattr(logging.getLogger("stallscope"), "propagate", False)
    with logging_to(stream) as writer:
        logging.getLogger("stallscope.agent").error("%d", "x")
    assert writer.dropped == 1


def test_lost_lines_are_reported_when_the_log_works_again() -> None:
    with pipe() as (reading, stream):
        os.set_blocking(stream.fileno(), False)
        with logging_to(stream) as writer:
            log = logging.getLogger("stallscope.agent")
            while not writer.dropped:
                log.info("x" * 1000)
                wait_until(lambda: writer._lines.empty(), "it is written")
            while True:
                try:
                    os.read(reading, 1 << 16)
                except BlockingIOError:
                    break
                if not select.select([reading], [], [], 0)[0]:
                    break
            log.info("it works")
        said = os.read(reading, 1 << 16).decode()
    assert "lines of the log were lost" in said
    assert said.endswith("stallscope: it works\n")


def test_a_line_of_the_log_is_json_where_that_is_wanted() -> None:
    value = json.loads(logged("json"))
    assert value.pop("time").endswith("Z")
    assert value == {
        "level": "warning",
        "logger": "stallscope.agent.some",
        "message": "status: no answer\\x1b",
    }


def test_the_journal_gets_the_level(monkeypatch: pytest.MonkeyPatch) -> None:
    with pipe() as (reading, stream):
        found = os.fstat(stream.fileno())
        monkeypatch.setenv("JOURNAL_STREAM", f"{found.st_dev}:{found.st_ino}")
        with logging_to(stream):
            logging.getLogger("stallscope.agent").error("no room")
            logging.getLogger("stallscope.agent").info("ready")
        assert os.read(reading, 4096) == b"<3>stallscope: no room\n<6>stallscope: ready\n"


def test_a_writer_that_is_closed_drops_lines_silently() -> None:
    stream = io.StringIO()
    writer = LineWriter(stream)
    writer.put("one")
    writer.close(PATIENCE)
    writer.put("two")
    assert stream.getvalue() == "one\n"
