# SPDX-License-Identifier: Apache-2.0
"""See tests/watching.py."""

from tests.watching import Waits as Watcher
from tests.watching import key_of

__all__ = ["Watcher", "key_of"]
