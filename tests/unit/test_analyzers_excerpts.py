# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from stallscope.analyzers import catalog
from stallscope.analyzers.excerpts import Excerpts


@pytest.fixture(scope="module")
def excerpts() -> Excerpts:
    return Excerpts(catalog.load())


def test_a_waiter_without_libc(excerpts: Excerpts) -> None:
    stack = ["__lll_lock_wait", "__GI___pthread_mutex_lock", "open_table(THD*, int)", "open_tables"]
    assert excerpts.of_waiter(stack) == ("open_table", "open_tables")


def test_a_waiter_in_innodb(excerpts: Excerpts) -> None:
    stack = [
        "libc.so.6+0x8",
        "pthread_cond_wait@@GLIBC_2.3.2",
        "os_event_wait_low",
        "sync_array_wait_event",
        "rw_lock_s_lock_spin",
        "btr_cur_search_to_nth_level",
    ]
    shown = excerpts.of_waiter(stack)
    assert shown[-1] == "btr_cur_search_to_nth_level"
    assert "os_event_wait_low" not in shown
    assert "libc.so.6+0x8" not in shown


def test_frames_without_names_stay_where_they_matter(excerpts: Excerpts) -> None:
    stack = ["__lll_lock_wait", "pthread_mutex_lock", "mariadbd+0x1f", "mysql_parse"]
    assert excerpts.of_waiter(stack) == ("mariadbd+0x1f", "mysql_parse")
    assert excerpts.of_waiter(["mariadbd+0x1f", "mysql_parse"]) == ("mariadbd+0x1f", "mysql_parse")


def test_a_waker_without_what_wakes(excerpts: Excerpts) -> None:
    stack = ["__lll_lock_wake", "__pthread_mutex_unlock_usercnt", "close_table", "mysql_parse"]
    assert excerpts.of_waker(stack) == ("close_table", "mysql_parse")
    assert excerpts.of_waiter(["close_table"]) == ("close_table",)


@pytest.mark.parametrize(
    "wakes",
    [
        ("pthread_cond_signal@@GLIBC_2.3.2", "os_cond_broadcast", "os_event_set"),
        ("__futex_wake_private", "___pthread_rwlock_unlock"),
        ("libc.so.6+0x9f", "libc.so.6+0xaf", "pthread_mutex_unlock", "inline_mysql_mutex_unlock"),
        ("syscall", "TTASFutexMutex<GenericPolicy>::exit"),
    ],
)
def test_ways_to_wake(excerpts: Excerpts, wakes: tuple[str, ...]) -> None:
    assert excerpts.of_waker((*wakes, "lock_rec_dequeue")) == ("lock_rec_dequeue",)


def test_nothing_but_helpers_is_shown_as_it_is(excerpts: Excerpts) -> None:
    stack = ("__lll_lock_wait", "pthread_mutex_lock")
    assert excerpts.of_waiter(stack) == stack
    assert excerpts.of_waiter(()) == ()


def test_hostile_stacks_end(excerpts: Excerpts) -> None:
    names = ["pthread_mutex_lock"] * 100_000 + ["a" * 1_000_000, "+0x", "0x", "", "<<<<((("]
    assert len(excerpts.of_waiter(names)) <= 1024
    assert excerpts.of_waiter(names[-5:])
