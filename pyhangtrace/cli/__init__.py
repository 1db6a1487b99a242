"""The command line: options and wiring, one command a file."""
