# SPDX-License-Identifier: Apache-2.0
"""What the measures of a sample are called where people read them, with their units."""

from __future__ import annotations

__all__ = ["TITLES"]

TITLES = {
    "Threads_running": "threads running",
    "processlist.running": "sessions running",
    "heartbeat.ms": "heartbeat, ms",
    "process.cpu_share": "CPU, cores",
    "psi.io.some_avg10": "I/O pressure, %",
    "psi.cpu.some_avg10": "CPU pressure, %",
    "psi.memory.some_avg10": "memory pressure, %",
    "host.run_queue": "run queue",
}
"""By the names that stallscope.samples.Sample has; of those that a person looks at first."""
