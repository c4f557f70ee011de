# SPDX-License-Identifier: Apache-2.0
"""Learn where a build of a server keeps its connections and statements: docs/calibration.md."""
