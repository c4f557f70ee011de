# SPDX-License-Identifier: Apache-2.0
"""The agent: watch, notice, capture, keep; docs/agent.md."""
