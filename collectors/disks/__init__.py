# SPDX-License-Identifier: Apache-2.0
"""Facts about the disks, file systems and mounts below a server, read without any write or I/O."""
