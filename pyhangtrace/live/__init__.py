"""The live view: cheap counters each second, a whole look when somebody stands still, and screens that show both.

`looker` is the process that looks, `looking` its other end here. `follow` has the order; `suspicion` says when to look
and `ticks` what a tick shows, both pure; `plain`, `ndjson` and `app` show it.
"""
