"""Workers of Ray that are of one job: the raylet starts those of all jobs, many before it knows whose they will be.

Such a worker's environment names no job for the rest of its life. But who drives a job keeps a connection to each of
its workers, and they to each other; what all jobs of a cluster are connected with are Ray's own services.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from pyhangtrace.discover.connected import Ends, components


def crowd(
    seed: int, workers: Collection[int], others: Collection[int], ends: Mapping[int, Collection[Ends]]
) -> set[int]:
    """Those connected with `seed`: workers, and programs that drive them; `seed` alone if it is neither."""
    inward = {(remote, local) for pid in workers for local, remote in ends.get(pid, ())}
    servers = {remote for pid in workers for _, remote in ends.get(pid, ())}
    drivers = [
        pid
        for pid in others
        # A program of Ray asks the cluster's directory, as workers do; a client or server of theirs does not.
        if inward.intersection(ends.get(pid, ()))
        and servers.intersection(far for _, far in ends.get(pid, ()))
    ]
    groups = components({*workers, *drivers}, ends)
    return next((group for group in groups if seed in group), {seed})
