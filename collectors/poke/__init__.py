# SPDX-License-Identifier: Apache-2.0
"""Changes to a live server that can be undone: what is allowed, to which server it applies, and
what was done."""
