# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a server's disks, file systems and mounts, and the commands that change it."""
