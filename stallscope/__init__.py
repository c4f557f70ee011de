# SPDX-License-Identifier: Apache-2.0
"""Names the stall of a live database server without stopping it."""
