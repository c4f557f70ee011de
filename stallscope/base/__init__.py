# SPDX-License-Identifier: Apache-2.0
"""What every other folder may use: errors, text, times, files. Knows nothing of stalls."""
