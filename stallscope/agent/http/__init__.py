# SPDX-License-Identifier: Apache-2.0
"""The agent over HTTP, without authentication: metrics, health, the store. docs/metrics.md."""
