"""When a watch looks at a job that seems to stall, and which of the looks become a report.

A look costs half a second of CPU and harms nobody, so it is taken of whatever seems to stall, and again ever less often
as long as nothing is wrong. A report is written once for a stall.
"""

from __future__ import annotations

from dataclasses import replace

from pyhangtrace.model.kinds import WELL, State
from pyhangtrace.model.watch import Episode, Still, WatchLimits

_SELDOM_S = 3600.0


def begin(limits: WatchLimits) -> Episode:
    """Before the first reading."""
    return Episode(gap_s=limits.stall_s, again_s=limits.rate_limit_s)


def observe(episode: Episode, still: Still, at_s: float, limits: WatchLimits) -> Episode:
    """Goes on with who stands still now. A stall ends when none of those that were in it is still in it."""
    if episode.still & still:
        return replace(episode, still=still)
    well_since_s = None if still else at_s if episode.still else episode.well_since_s or at_s
    rested = well_since_s is not None and at_s - well_since_s > max(limits.rate_limit_s, limits.stall_s)
    return replace(
        episode,
        still=still,
        looked=False,
        reported=False,
        well_since_s=well_since_s,
        gap_s=limits.stall_s if rested else episode.gap_s,
        again_s=limits.rate_limit_s,
    )


def wants_look(episode: Episode, at_s: float, limits: WatchLimits) -> bool:
    """Whether to look now."""
    if not episode.still or episode.reported:
        return False
    if episode.last_report_s is not None and at_s - episode.last_report_s < limits.rate_limit_s:
        return False
    if episode.last_look_s is None:
        return True
    return at_s - episode.last_look_s >= (episode.again_s if episode.looked else episode.gap_s)


def looked(episode: Episode, verdict: State, at_s: float, limits: WatchLimits) -> tuple[Episode, bool]:
    """After a look with this verdict, and whether it becomes a report."""
    longest_s = max(limits.rate_limit_s, limits.stall_s)
    if verdict in WELL:
        well = replace(
            episode,
            looked=True,
            last_look_s=at_s,
            gap_s=min(2 * episode.gap_s, longest_s),
            again_s=min(2 * episode.again_s, max(longest_s, _SELDOM_S))
            if episode.looked
            else episode.again_s,
        )
        return well, False
    told = replace(
        episode, looked=True, reported=True, last_look_s=at_s, last_report_s=at_s, gap_s=limits.stall_s
    )
    return told, True


def failed(episode: Episode, at_s: float, limits: WatchLimits) -> Episode:
    """After a look that gave nothing: the next one comes later."""
    longest_s = max(limits.rate_limit_s, limits.stall_s)
    return replace(episode, last_look_s=at_s, gap_s=min(2 * episode.gap_s, longest_s))
