"""The report in every format: one format a file, all listed in `registry`."""
