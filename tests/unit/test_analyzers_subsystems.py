# SPDX-License-Identifier: Apache-2.0
"""Subsystems: the data is sound, names find theirs, and threads count where they work."""

from __future__ import annotations

import pytest

from stallscope.analyzers import catalog, engine, subsystems
from stallscope.analyzers.subsystems import COLOURS, Subsystem, Subsystems
from tests.unit.scenes import FUTEX, IDLE_SESSION, Scenery


@pytest.mark.parametrize(
    ("function", "name"),
    [
        ("btr_cur_search_to_nth_level", "btr"),
        ("btr_search_guess_on_hash", "ahi"),
        ("buf_page_get_gen", "buf"),
        ("dict_sys_t::lock_wait", "dict"),
        ("fil_space_extend", "fil"),
        ("fsp_reserve_free_extents", "fsp"),
        ("fseg_create_general", "fsp"),
        ("lock_rec_lock", "lock"),
        ("lock_tables", "table-lock"),
        ("log_write_up_to", "log"),
        ("mtr_t::commit", "mtr"),
        ("os_file_pread", "os"),
        ("page_cur_insert_rec_low", "page"),
        ("row_search_mvcc", "row"),
        ("row_purge_step", "purge"),
        ("srv_master_thread", "srv"),
        ("mutex_spin_wait", "sync"),
        ("PolicyMutex<TTASEventMutex<GenericPolicy> >::enter", "sync"),
        ("trx_commit", "trx"),
        ("open_table", "table-cache"),
        ("JOIN::exec", "sql"),
        ("MDL_context::acquire_lock", "mdl"),
        ("MYSQL_BIN_LOG::ordered_commit", "binlog"),
        ("handle_slave_sql", "replication"),
        ("rocksdb::DBImpl::Get", "rocksdb"),
        ("__wt_txn_commit", "wiredtiger"),
        ("mongo::Lock::DBWrite::lockDB", "mongo-lock"),
        ("mongo::SemaphoreTicketHolder::waitForTicket", "mongo-admission"),
        ("mongo::TTLMonitor::run", "mongodb"),
        ("__evict_page", "wt-cache"),
        ("__checkpoint_db_internal", "wt-checkpoint"),
        ("__log_wait_for_earlier_slot", "wt-log"),
        ("rocksdb::WriteThread::AwaitState", "rocksdb-write"),
        ("rocksdb::lru_cache::LRUCacheShard::Lookup", "rocksdb-cache"),
        ("GetVirtualXIDsDelayingChkptGuts", "pg-transam"),
        ("AsyncReadBuffers", "pg-buffer"),
        ("SummarizeWAL", "pg-wal"),
        ("runtime.stopm", "go"),
        ("take_gil", "python"),
        ("uv__io_poll", "node"),
        ("CompileBroker::compiler_thread_loop", "jvm"),
        ("std::__1::mutex::lock", "pthread"),
        ("LWLockAcquire", "pg-lock"),
        ("XLogFlush", "pg-wal"),
        ("heap_update", "pg-access"),
        ("malloc", "malloc"),
        ("pthread_mutex_lock", "pthread"),
        ("do_syscall_64", "kernel"),
        ("a_function_of_nobody", "other"),
        (None, "other"),
    ],
)
def test_a_function_has_a_subsystem(function: str | None, name: str) -> None:
    assert subsystems.load().of(function) == name


def test_the_data_is_sound() -> None:
    data = subsystems.load()
    assert len(data.by_name) == len(data.items)
    assert {item.colour for item in data.items} <= COLOURS
    assert all(item.title and item.names for item in data.items)
    assert data.colour("lock_rec_lock") == "red"
    assert data.colour("a_function_of_nobody") == "grey"


@pytest.mark.parametrize(
    ("items", "complaint"),
    [
        ((("a", "x_*"), ("b", "x_*")), "x_\\* is in a and in b"),
        ((("a", "x_*_y"),), "stands at the end"),
    ],
)
def test_mistakes_in_the_data(items: tuple[tuple[str, str], ...], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Subsystems([Subsystem(name, "t", "red", (names,)) for name, names in items])


def test_threads_count_where_they_work() -> None:
    scenery = Scenery()
    scenery.add(IDLE_SESSION, times=50)
    scenery.add(f"{FUTEX}, mutex_spin_wait, lock_rec_lock, row_search_mvcc, do_command", times=6)
    scenery.add("fsync, os_file_flush, log_write_up_to, do_command", times=3)
    scenery.add("??, ??", state="R")
    shares = engine.analyze(scenery.capture(), catalog.load()).subsystems
    assert [(s.subsystem, s.threads, s.share) for s in shares] == [
        ("lock", 6, 0.6),
        ("log", 3, 0.3),
        ("other", 1, 0.1),
    ]
