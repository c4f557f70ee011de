# SPDX-License-Identifier: Apache-2.0
"""What tests draw at random: the same in each run, unless the environment asks for other draws."""

from __future__ import annotations

import os

__all__ = ["EXAMPLES", "SEED"]

SEED = int(os.environ.get("STALLSCOPE_SEED", "20261129"))
EXAMPLES = int(os.environ.get("STALLSCOPE_EXAMPLES", "0"))
"""How many other examples hypothesis draws than those of each run; 0: none."""
