# SPDX-License-Identifier: Apache-2.0
"""The data model: captures, waits, samples, incidents, rings, and their file formats."""
