# SPDX-License-Identifier: Apache-2.0
"""Sources of Captures, of waits and of facts about the server; the triggers."""
