# SPDX-License-Identifier: Apache-2.0
"""The stalls of all servers in one place: rows that agents ship to an engine that exists, and the
questions that it answers. docs/fleet.md."""
