"""The live view: cheap counters each second, a whole look when somebody stands still, and screens that show both.

`looker` is the process that looks, `looking` its other end here. `follow` has the order; `suspicion` says when to look
and `ticks` what a tick shows, both pure. `stream` shows it as lines, `app` on a terminal, with the words of `screen` in
the rows of `row_list`.
"""
