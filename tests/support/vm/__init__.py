# SPDX-License-Identifier: Apache-2.0
"""Virtual machines for the tests: other kernels, and whole systems."""
