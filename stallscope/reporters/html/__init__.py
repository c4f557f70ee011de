# SPDX-License-Identifier: Apache-2.0
"""The report as one HTML file: docs/report.md says how to read it and what it is made of."""
