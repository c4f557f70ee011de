# SPDX-License-Identifier: Apache-2.0
"""Run the command line: ``python -m stallscope``."""

import sys

try:
    from stallscope.main import entry_point
except KeyboardInterrupt:  # Ctrl-C before the handlers were installed
    print("stallscope: interrupted", file=sys.stderr)
    sys.exit(130)

if __name__ == "__main__":
    entry_point()
