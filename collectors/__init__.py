"""Sources of Captures and of data about the server: the probe, gdb, /proc."""
