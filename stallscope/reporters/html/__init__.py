# SPDX-License-Identifier: Apache-2.0
"""The report as one HTML file: docs/report.md explains how to read it and how it is built."""
