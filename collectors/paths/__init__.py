# SPDX-License-Identifier: Apache-2.0
"""Files that a server or another process of the host can choose.

Its disk may never answer: a FUSE file system whose program has stopped, NFS without its server. A
process that asks such a disk can be neither interrupted nor killed, and a thread that does keeps
its whole process from ending. So only ``child``, a process of its own, asks, and is left behind
where it gets no answer. All other modules use ``asking``.
"""
