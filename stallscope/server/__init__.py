# SPDX-License-Identifier: Apache-2.0
"""What database servers say, as text and numbers: statements, InnoDB's status, deadlocks."""
