# SPDX-License-Identifier: Apache-2.0
"""The engines: ClickHouse, and a folder that DuckDB reads."""
