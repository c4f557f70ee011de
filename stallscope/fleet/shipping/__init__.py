# SPDX-License-Identifier: Apache-2.0
"""From an agent, or a store, to engines: rows in a spool on disk, and threads that send them."""
