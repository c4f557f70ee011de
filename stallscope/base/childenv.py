# SPDX-License-Identifier: Apache-2.0
"""The environment of programs that this one starts: without passwords.

Other users of the host may be able to see the environment of a program, and a program passes it on.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

__all__ = ["child_environment"]

_SECRET = re.compile(
    r"PASSW|PASSPHRASE|SECRET|CREDENTIAL|TOKEN|API_?KEY|ACCESS_?KEY|(?<!^)(?<!^OLD)PWD",
    re.IGNORECASE,
)
"""Of names such as MYSQL_PWD; PWD and OLDPWD are folders."""


def child_environment(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables for a child, of this process where none are given: those whose names say
    that they are secrets are left out."""
    given = os.environ if environment is None else environment
    return {name: value for name, value in given.items() if not _SECRET.search(name)}
