"""`watch`: armed mode. Reads counters while all goes well, and looks once at a job that stalls.

`watcher` has the order, `bundle` writes what a stall has left, `command` runs what the user wants run then.
"""
