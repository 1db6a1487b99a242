"""From evidence to verdict: one graph of waits over all threads of all processes.

Pure functions on plain data: no clock, no host, no file. `waits` says what each thread waits for, `holders` and
`ends` who can end it, `collectives` matches the group's operations over the ranks, `graph` finds cycles and ends,
`verdict` names what follows, `build` makes the report.
"""

from pyhangtrace.analyze.report import analyze, more_time_wanted, outsiders_wanted

__all__ = ["analyze", "more_time_wanted", "outsiders_wanted"]
