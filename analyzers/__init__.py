"""Pure functions from Captures to findings: importers, wait graph, grouping, signatures."""
