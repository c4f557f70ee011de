# SPDX-License-Identifier: Apache-2.0
"""Screens: the live view of ``stallscope top``."""
