# SPDX-License-Identifier: Apache-2.0
"""Replace what is confidential in captures and incidents: docs/commands/incidents.md."""
