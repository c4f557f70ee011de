# SPDX-License-Identifier: Apache-2.0
"""The agent: it polls a server, captures stalls and stores incidents; docs/agent.md."""
