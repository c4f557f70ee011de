# SPDX-License-Identifier: Apache-2.0
"""What works here, what is lost, and what to type: checks, each small and in time."""
