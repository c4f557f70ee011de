# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501  a stack reads best on few lines
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
    "PostgreSQL 9.0": (
        "recv, secure_read, pq_recvbuf, pq_getbyte, SocketBackend, ReadCommand, PostgresMain",
        "select, pg_usleep, BgWriterNap, BackgroundWriterMain, AuxiliaryProcessMain",
        "select, pg_usleep, WalWriterMain, AuxiliaryProcessMain",
        "select, pg_usleep, AutoVacLauncherMain, StartAutoVacLauncher, reaper",
        "poll, PgstatCollectorMain, pgstat_start, reaper",
        "select, pg_usleep, pgarch_MainLoop, PgArchiverMain, pgarch_start",
        "select, libpq_select, libpqrcv_receive, WalReceiverMain, AuxiliaryProcessMain",
        "select, pg_usleep, XLogPageRead, ReadRecord, StartupXLOG, StartupProcessMain",
    ),
    "PostgreSQL 14 to 18, where the compiler inlines": (
        f"{WAIT}, WaitLatch, XLogPageRead, XLogReadAhead, XLogPrefetcherNextBlock, ReadRecord, PerformWalRecovery, StartupXLOG",
        f"{WAIT}, WaitLatch, PerformWalRecovery, StartupXLOG, StartupProcessMain",
        f"{WAIT}, WaitLatchOrSocket, WalReceiverMain, AuxiliaryProcessMain",
        f"{WAIT}, WaitLatch, PgArchiverMain, AuxiliaryProcessMain",
        f"{WAIT}, WaitLatch, IoWorkerMain, postmaster_child_launch, StartChildProcess",
        f"{WAIT}, WaitLatch, WalSummarizerMain, postmaster_child_launch",
        f"{WAIT}, WaitLatch, ReplSlotSyncWorkerMain, postmaster_child_launch",
        f"{WAIT}, WaitLatchOrSocket, start_apply, run_apply_worker, ApplyWorkerMain, BackgroundWorkerMain",
        f"{WAIT}, WaitLatch, ParallelApplyWorkerMain, BackgroundWorkerMain",
        f"{WAIT}, WaitLatch, PgCronLauncherMain, BackgroundWorkerMain, postmaster_child_launch",
        f"{WAIT}, logical_read_xlog_page, ReadPageInternal, XLogReadRecord, XLogSendLogical, WalSndLoop",
        "select, SysLoggerMain, SysLogger_Start, PostmasterMain",
    ),
    "PostgreSQL whose dump begins at its own functions": (
        "WaitEventSetWait, secure_read, pq_recvbuf, pq_getbyte, SocketBackend, PostgresMain",
        "WaitLatch, CheckpointerMain, AuxiliaryProcessMain",
        "WaitLatch, AutoVacLauncherMain",
    ),
    "MongoDB 6 to 8": (
        "recvmsg, asio::detail::socket_ops::sync_recv, mongo::transport::AsioSession::sourceMessage, "
        "mongo::transport::SessionWorkflow::Impl::_receiveRequest, mongo::transport::SessionWorkflow::Impl::_doOneIteration",
        "epoll_wait, asio::detail::epoll_reactor::run, asio::detail::scheduler::do_run_one, asio::detail::scheduler::run, "
        "asio::io_context::run, mongo::transport::AsioTransportLayer::AsioReactor::run",
        f"{TIMED}, mongo::stdx::condition_variable::wait_for, mongo::TTLMonitor::run",
        f"{TIMED}, mongo::FTDCController::doLoop",
        f"{COND}, mongo::ThreadPool::Impl::_consumeTasks, mongo::ThreadPool::Impl::_workerThreadBody",
        f"{WT}, __evict_thread_run, __wt_thread_run, start_thread",
        f"{WT}, __checkpoint_cleanup, start_thread",
        f"{WT}, __chunkcache_metadata_server, start_thread",
        "__wt_cond_wait_signal, __sweep_server, start_thread",
        f"{WT}, __wt_async_worker, start_thread",
    ),
    "RocksDB of other versions": (
        f"{COND}, std::__1::condition_variable::wait, rocksdb::ThreadPoolImpl::Impl::BGThread, start_thread",
        f"{TIMED}, rocksdb::InstrumentedCondVar::TimedWaitInternal, rocksdb::Timer::Run, start_thread",
        f"{TIMED}, rocksdb::port::CondVar::TimedWait, rocksdb::DeleteScheduler::BackgroundEmptyTrash",
    ),
    "musl": (
        "__cp_end, __syscall_cp_c, poll, Mysqld_socket_listener::listen_for_connection_event, mysqld_main",
        "__timedwait_cp, __pthread_cond_timedwait, Per_thread_connection_handler::block_until_new_connection, handle_connection",
    ),
    "Go": (
        "runtime.futex, runtime.futexsleep, runtime.notesleep, runtime.mPark, runtime.stopm, runtime.findRunnable, runtime.schedule, runtime.park_m, runtime.mcall",
        "runtime.futex.abi0, runtime.futexsleep, runtime.notetsleep_internal, runtime.notetsleepg, os/signal.signal_recv, os/signal.loop",
        "runtime.usleep.abi0, runtime.sysmon, runtime.mstart1, runtime.mstart0, runtime.mstart",
        "internal/runtime/syscall.Syscall6, internal/runtime/syscall.EpollWait, runtime.netpoll, runtime.findRunnable, runtime.schedule",
        "runtime.epollwait, runtime.netpoll, runtime.findrunnable, runtime.schedule",
        "runtime.futex, runtime.futexsleep, runtime.notesleep, runtime.templateThread, runtime.mstart1",
    ),
    "node": (
        "epoll_pwait, uv__io_poll, uv_run, node::SpinEventLoop, node::Start, main",
        f"{COND}, uv_cond_wait, worker, start_thread",
        f"{COND}, uv_cond_wait, node::TaskQueue<v8::Task>::BlockingPop, node::(anonymous namespace)::PlatformWorkerThread, start_thread",
        "epoll_pwait, uv__io_poll, uv_run, node::WorkerThreadsTaskRunner::DelayedTaskScheduler::Run, start_thread",
        "futex_wait, do_futex_wait, __new_sem_wait_slow64, uv_sem_wait, node::inspector::(anonymous namespace)::StartIoThreadMain, start_thread",
    ),
    "Python": (
        "futex_abstimed_wait, do_futex_wait, sem_clockwait, PyThread_acquire_lock_timed, _queue_SimpleQueue_get_impl, _queue_SimpleQueue_get, _PyEval_EvalFrameDefault",
        "epoll_wait, select_epoll_poll_impl, select_epoll_poll, _PyEval_EvalFrameDefault",
    ),
    "Java": (
        f"{TIMED}, os::PlatformMonitor::wait, Monitor::wait_without_safepoint_check, VMThread::loop, VMThread::run, Thread::call_run, thread_native_entry",
        f"{TIMED}, PlatformMonitor::wait, Monitor::wait, CompileQueue::get, CompileBroker::compiler_thread_loop, JavaThread::thread_main_inner",
        "futex_wait, do_futex_wait, __new_sem_wait_slow64, PosixSemaphore::wait, WorkerTaskDispatcher::worker_run_task, WorkerThread::run, thread_native_entry",
        f"{TIMED}, os::PlatformMonitor::wait, Monitor::wait_without_safepoint_check, WatcherThread::sleep, WatcherThread::run",
        f"{COND}, os::PlatformMonitor::wait, Monitor::wait, ServiceThread::service_thread_entry, JavaThread::thread_main_inner",
        "__futex_abstimed_wait_common, __pthread_clockjoin_ex, CallJavaMainInNewThread, ContinueInNewThread, main",
    ),
    "tokio": (
        "epoll_wait, mio::poll::Poll::poll, tokio::runtime::io::driver::Driver::turn, tokio::runtime::time::Driver::park_internal",
        "syscall, std::sys::pal::unix::futex::futex_wait, std::sys::sync::condvar::futex::Condvar::wait_optional_timeout, "
        "tokio::loom::std::condvar::Condvar::wait, tokio::runtime::scheduler::multi_thread::park::Inner::park_condvar",
        "syscall, parking_lot_core::thread_parker::imp::ThreadParker::park, parking_lot_core::parking_lot::park, "
        "parking_lot::condvar::Condvar::wait_until_internal, tokio::runtime::blocking::pool::Inner::run",
    ),
    "Redis, nginx, memcached": (
        "epoll_wait, aeApiPoll, aeProcessEvents, aeMain, main",
        f"{COND}, bioProcessBackgroundJobs, start_thread",
        "epoll_wait, ngx_epoll_process_events, ngx_process_events_and_timers, ngx_worker_process_cycle, main",
        "sigsuspend, ngx_master_process_cycle, main",
        f"{COND}, ngx_thread_cond_wait, ngx_thread_pool_cycle, start_thread",
        "epoll_wait, epoll_dispatch, event_base_loop, worker_libevent, start_thread",
        f"{COND}, assoc_maintenance_thread, start_thread",
        f"{COND}, background_thread_entry, start_thread",
    ),
    ".NET": (
        f"{COND}, CorUnix::CPalSynchronizationManager::ThreadNativeWait, CorUnix::CPalSynchronizationManager::BlockThread, CorUnix::InternalWaitForMultipleObjectsEx, "
        "CLREventBase::WaitEx, FinalizerThread::WaitForFinalizerEvent, FinalizerThread::FinalizerThreadWorker",
        "poll, CorUnix::CPalSynchronizationManager::ReadBytesFromProcessPipe, CorUnix::CPalSynchronizationManager::WorkerThread",
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


@pytest.mark.parametrize(
    "stack",
    [
        # They end in a function of the server that nothing but a wait for others calls.
        "pthread_cond_wait, std::condition_variable::wait, rocksdb::WriteThread::BlockingAwaitState",
        "sem_wait, PGSemaphoreLock",
        "pgaio_wref_wait",
        # Queues for locks, in threads that often have no work.
        "runtime.futex, runtime.futexsleep, runtime.lock2, runtime.stopm",
        "take_gil, PyEval_RestoreThread, _queue_SimpleQueue_get",
        "syscall, std::sys::sync::mutex::futex::Mutex::lock_contended, tokio::runtime::blocking::pool::Inner::run",
        "LWLockAcquire, WalSummarizerMain",
        "__lll_lock_wait, pthread_mutex_lock, CompileQueue::get, CompileBroker::compiler_thread_loop",
        # Work of threads that often have none.
        "pthread_cond_wait, VM_Operation::evaluate, a, b, c, VMThread::loop, VMThread::run",
        "WaitLatch, ProcSleep, WaitOnLock, LockAcquireExtended, LogicalRepApplyLoop, start_apply",
        "fdatasync, issue_xlog_fsync, XLogWrite, XLogBackgroundFlush, WalWriterMain",
        "pthread_cond_wait, handler, a, b, boost::asio::detail::scheduler::do_run_one",
    ],
)
def test_a_wait_for_others_is_not_idle(stack: str, signatures: catalog.Catalog) -> None:
    scenery = Scenery()
    scenery.add(stack, times=3, state="?")
    states = {group.state for group in engine.analyze(scenery.capture(), signatures).groups}
    assert "idle" not in states
