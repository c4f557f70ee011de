# SPDX-License-Identifier: Apache-2.0
"""Texts and numbers of database servers: statements, InnoDB's status, deadlocks."""
