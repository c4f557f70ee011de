# SPDX-License-Identifier: Apache-2.0
"""Other kernels than this machine's, in virtual machines."""
