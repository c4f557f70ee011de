# SPDX-License-Identifier: Apache-2.0
"""The commands, one module each: ``NAME``, ``EPILOG``, ``add_arguments`` and ``run``."""

from __future__ import annotations
