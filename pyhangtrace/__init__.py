"""Says which rank of a silent job hangs, on what, and why, without stopping anybody."""

__version__ = "0.1.0"
