# SPDX-License-Identifier: Apache-2.0
"""What everything meets in: captures, waits, samples, incidents, rings, and how files hold them."""
