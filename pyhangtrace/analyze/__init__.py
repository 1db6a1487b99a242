"""From evidence to verdict: one graph of waits over all threads of all processes.

Pure functions on plain data: no clock, no host, no file. `scene` indexes the evidence and `identity` says who is
who; `waits` says what each thread waits for (rules in `states`, `lock_waits`, `call_waits`, `syscall_waits`, whom they
are asked of in `rules`, names of frames in `calls` and `services`, read once for all stacks alike in `readings`),
`holders` and `ends` who can end it, `collectives` matches the group's operations over the ranks (`unseen`: those of
which no look tells where they are), `outside` says who waits for the world, `bystanders` who else may end a wait (by
the `ways_out` that there are), `steps` who only pauses between two steps, `orders` and `requests` what is handed on and
what is owed, `graph` finds cycles and ends (of single waits in `single_fates`, of knots in `knot_fates`), `verdict`
names what follows (`hung`, `working`, `slow_storage`), `memory` whether memory matters, `words`, `next_steps` and
`advice` say it, `build` makes the report. `patience` asks for more evidence.
"""

from pyhangtrace.analyze.report import (
    alarms_wanted,
    analyze,
    more_time_wanted,
    outsiders_wanted,
    progress_wanted,
    shared_locks_wanted,
)

__all__ = [
    "alarms_wanted",
    "analyze",
    "more_time_wanted",
    "outsiders_wanted",
    "progress_wanted",
    "shared_locks_wanted",
]
