# SPDX-License-Identifier: Apache-2.0
"""Reporters: what analyzers found, as text for people and as JSON for programs."""
