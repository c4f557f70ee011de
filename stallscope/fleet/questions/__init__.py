# SPDX-License-Identifier: Apache-2.0
"""What a fleet is asked, in SQL that all engines take."""
