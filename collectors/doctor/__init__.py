# SPDX-License-Identifier: Apache-2.0
"""The checks of ``stallscope doctor``: what works on this host, and how to fix the rest."""
