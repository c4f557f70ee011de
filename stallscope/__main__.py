# SPDX-License-Identifier: Apache-2.0
"""Run the command line: ``python -m stallscope``."""

from stallscope.main import entry_point

if __name__ == "__main__":
    entry_point()
