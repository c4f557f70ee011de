# SPDX-License-Identifier: Apache-2.0
"""Servers at rest: each thread that every server has is idle, and nothing is found."""

from __future__ import annotations

import pytest

from stallscope.analyzers import catalog, engine
from stallscope.model.capture import Capture, Thread
from stallscope.reporters.facts import unread
from tests.unit.scenes import Scenery, frames

COND = "__futex_abstimed_wait_common64, __pthread_cond_wait_common, ___pthread_cond_wait"
TIMED = "__futex_abstimed_wait_common64, __pthread_cond_wait_common, ___pthread_cond_timedwait64"
OLD = "pthread_cond_wait@@GLIBC_2.3.2"
WAIT = "epoll_wait, WaitEventSetWaitBlock, WaitEventSetWait"
WT = "pthread_cond_timedwait, __wt_cond_wait_signal"
MYSQL = "do_command, do_handle_one_connection, handle_one_connection, start_thread"

SERVERS = {
    "MySQL 5.1, 5.5": (
        f"read, vio_read, my_real_read, my_net_read, {MYSQL}",
        f"{OLD}, cache_thread, end_thread, handle_one_connection, start_thread",
        f"{OLD}, one_thread_per_connection_end, handle_one_connection, start_thread",
        "select, handle_connections_sockets, main",
        "do_sigwait, sigwait, signal_hand, start_thread",
        f"{OLD}, os_event_wait_low, os_aio_simulated_handle, fil_aio_wait, io_handler_thread",
        "select, os_thread_sleep, srv_lock_timeout_and_monitor_thread, start_thread",
        f"{OLD}, os_event_wait_low, srv_master_thread, start_thread",
        f"{OLD}, MYSQL_LOG::wait_for_update, mysql_binlog_send, dispatch_command, {MYSQL}",
    ),
    "MySQL 5.7 to 9.x": (
        "ppoll, vio_io_wait, vio_socket_io_wait, vio_read, net_read_raw_loop, net_read_packet, "
        "my_net_read, Protocol_classic::read_packet, Protocol_classic::get_command, do_command, "
        "handle_connection, pfs_spawn_thread",
        f"{COND}, Per_thread_connection_handler::block_until_new_connection, handle_connection",
        "poll, Mysqld_socket_listener::listen_for_connection_event, mysqld_main, main",
        "sigwaitinfo, signal_hand, pfs_spawn_thread",
        f"{TIMED}, os_event::timed_wait, os_event::wait_time_low, log_checkpointer",
        f"{TIMED}, os_event::timed_wait, os_event_wait_time_low, pc_sleep_if_needed, "
        "buf_flush_page_cleaner_coordinator",
        f"{COND}, os_event::wait_low, buf_flush_page_cleaner_worker, start_thread",
        "io_getevents_0_4, LinuxAIOHandler::collect, LinuxAIOHandler::poll, fil_aio_wait, "
        "io_handler_thread",
    ),
    "MariaDB 10.5 and later": (
        "poll, vio_io_wait, vio_socket_io_wait, vio_read, my_real_read, "
        f"my_net_read_packet_reallen, {MYSQL}",
        f"{TIMED}, Thread_cache::park, do_handle_one_connection, handle_one_connection",
        f"{TIMED}, std::condition_variable::wait_for, "
        "tpool::thread_pool_generic::wait_for_tasks, tpool::thread_pool_generic::get_task, "
        "tpool::thread_pool_generic::worker_main",
        "syscall, io_getevents_0_4, tpool::aio_linux::getevent_thread_routine",
        f"{TIMED}, buf_flush_page_cleaner, start_thread",
        f"{TIMED}, my_service_thread_sleep, ma_checkpoint_background, start_thread",
        f"{TIMED}, get_event, worker_main, start_thread",
        "epoll_wait, io_poll_wait, listener, get_event, worker_main, start_thread",
    ),
    "Percona Server, thread pools and replicas": (
        f"{TIMED}, os_event_wait_time_low, buf_lru_manager_thread, start_thread",
        f"{COND}, os_event_wait_low, srv_redo_log_follow_thread, start_thread",
        f"{COND}, become_consumer_thread, query_worker_thread_loop, tp_worker_thread_main",
        f"{TIMED}, sleep_stall_check, tp_stall_check_thread_main, start_thread",
        f"{TIMED}, xpl::Cond::timed_wait, ngs::Scheduler_dynamic::worker, start_thread",
        f"{TIMED}, slave_sleep, sql_delay_event, exec_relay_log_event, handle_slave_sql",
        f"{TIMED}, slave_sleep, connect_to_master, safe_connect, handle_slave_io",
    ),
    "MyRocks": (
        f"{COND}, std::condition_variable::wait, rocksdb::ThreadPoolImpl::Impl::BGThread, "
        "rocksdb::ThreadPoolImpl::Impl::BGThreadWrapper, start_thread",
        "pthread_cond_wait, ConditionWait, rocksdb::ThreadPool::BGThread, "
        "rocksdb::BGThreadWrapper, start_thread",
        f"{TIMED}, myrocks::Rdb_drop_index_thread::run, myrocks::Rdb_thread::thread_func",
    ),
    "TokuDB": (
        f"{TIMED}, toku_cond_timedwait, minicron_do, start_thread",
        f"{COND}, toku_cond_wait, work_on_kibbutz, start_thread",
        f"{TIMED}, evictor::run_eviction_thread, eviction_thread, start_thread",
        f"{COND}, toku_cond_wait, toku_thread_run_internal, start_thread",
    ),
    "PBXT": (
        f"{TIMED}, xt_p_cond_timedwait, xt_timed_wait_cond, xn_sw_main, xn_sw_run_thread, thr_main",
        f"{TIMED}, xt_p_cond_timedwait, xt_timed_wait_cond, xres_cp_main, xres_cp_run_thread",
        f"{TIMED}, xt_timed_wait_cond, tabc_fr_main, tabc_fr_run_thread, thr_main",
    ),
    "MongoDB with MMAPv1": (
        "recv, mongo::Socket::_recv, mongo::Socket::recv, mongo::MessagingPort::recv, "
        "mongo::PortMessageServer::handleIncomingMsg",
        "nanosleep, mongo::sleepmillis, mongo::dur::durThread, thread_proxy",
        "pthread_cond_wait, boost::condition_variable_any::wait, mongo::FileAllocator::run",
        "select, mongo::Listener::initAndListen, mongo::_initAndListen, main",
        "nanosleep, mongo::sleepsecs, mongo::DataFileSync::run, mongo::BackgroundJob::jobBody",
    ),
    "MongoDB with WiredTiger": (
        "recvmsg, asio::detail::socket_ops::sync_recv, "
        "mongo::transport::TransportLayerASIO::ASIOSession::sourceMessage, "
        "mongo::ServiceStateMachine::_sourceMessage, mongo::ServiceStateMachine::_runNextInGuard",
        f"{WT}, __wt_cond_auto_wait_signal, __log_wrlsn_server, start_thread",
        f"{WT}, __ckpt_server, start_thread",
        f"{WT}, __sweep_server, start_thread",
        f"{WT}, __wt_evict_thread_run, __thread_run, start_thread",
        f"{WT}, __evict_lru_pages, __wt_evict_thread_run, __thread_run, start_thread",
        f"{WT}, __log_server, start_thread",
    ),
    "PostgreSQL without static symbols": (
        f"{WAIT}, secure_read, ??, pq_getbyte, PostgresMain, ??, ??, PostmasterMain, main",
        f"{WAIT}, WaitLatch, ??, StartAutoVacLauncher, ??, __restore_rt",
        "select, ??, PostmasterMain, main, __libc_start_call_main",
    ),
    "PostgreSQL": (
        f"{WAIT}, secure_read, pq_recvbuf, pq_getbyte, SocketBackend, ReadCommand, PostgresMain",
        f"{WAIT}, WaitLatch, CheckpointerMain, AuxiliaryProcessMain",
        f"{WAIT}, WaitLatch, BackgroundWriterMain, AuxiliaryProcessMain",
        f"{WAIT}, WaitLatch, WalWriterMain, AuxiliaryProcessMain",
        f"{WAIT}, WaitLatch, AutoVacLauncherMain",
        f"{WAIT}, WaitLatch, ApplyLauncherMain, StartBackgroundWorker",
        f"{WAIT}, WalSndWait, WalSndLoop, exec_replication_command, PostgresMain",
        "select, ServerLoop, PostmasterMain, main",
        "poll, WaitLatchOrSocket, secure_read, pq_recvbuf, pq_getbyte, SocketBackend, PostgresMain",
    ),
}


@pytest.mark.parametrize("state", ["S", "?"])
@pytest.mark.parametrize("server", SERVERS)
def test_nothing_is_found(server: str, state: str, signatures: catalog.Catalog) -> None:
    scenery = Scenery()
    for stack in SERVERS[server]:
        scenery.add(stack, times=40, state=state)
    analysis = engine.analyze(scenery.capture(), signatures)
    assert [g.frames for g in analysis.groups if g.state != "idle"] == []
    assert analysis.findings == ()


@pytest.mark.parametrize(
    ("kernel", "state", "is_idle"),
    [
        ("io_wq_worker, ret_from_fork", "S", True),
        ("io_sq_thread, ret_from_fork", "S", True),
        ("folio_wait_bit, vfs_fsync_range, io_worker_handle_work, io_wq_worker", "D", False),
    ],
)
def test_workers_of_io_uring_have_no_stack_to_miss(
    kernel: str, state: str, is_idle: bool, signatures: catalog.Catalog
) -> None:
    """They are threads of the server's process that run in the kernel alone."""
    worker = Thread(tid=7, frames=(), state=state, kernel_frames=frames(kernel))
    capture = Capture(backend="bpf", processes=(), threads=(worker,))
    (group,) = engine.analyze(capture, signatures).groups
    assert (group.state == "idle") is is_idle
    assert unread(capture) == []
    unreadable = Capture(backend="bpf", processes=(), threads=(Thread(tid=7, frames=()),))
    assert unread(unreadable) == ["1 thread without a stack"]
