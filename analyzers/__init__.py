# SPDX-License-Identifier: Apache-2.0
"""Pure functions from Captures to findings: importers, wait graph, grouping, signatures."""
