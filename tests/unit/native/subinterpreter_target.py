"""Blocks in a function that runs in a second interpreter, until its standard input closes."""

try:
    import _interpreters as interpreters  # since 3.13
except ImportError:
    import _xxsubinterpreters as interpreters

CODE = r"""
import os

def in_sub():
    os.write(1, b"ready\n")
    os.read(0, 1)

in_sub()
"""

interpreters.run_string(interpreters.create(), CODE)
