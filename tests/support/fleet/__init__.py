# SPDX-License-Identifier: Apache-2.0
"""A fleet for tests and benchmarks: simulated agents, and real engines that take what they ship."""
