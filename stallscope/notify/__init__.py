# SPDX-License-Identifier: Apache-2.0
"""Notifications: each stall reaches each destination once, whatever fails; docs/notify.md.

    alerts.py ...... what is notified: one alert for each stall, beyond the agent's own life
      |
      v
    delivery.py .... what each destination still has to get, and when it is tried again
      |        \\
      v         outbox.py ... the same on disk, for the next start
    destinations/    one module for each kind of destination
"""
