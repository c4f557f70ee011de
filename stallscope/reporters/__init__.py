# SPDX-License-Identifier: Apache-2.0
"""Reporters: the results of analyzers as text for people and as JSON for programs."""
