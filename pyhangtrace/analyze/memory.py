"""Whether memory has anything to do with it: verdict, numbers, and what it is not."""

from __future__ import annotations

from dataclasses import dataclass

from pyhangtrace.analyze import memory_oom
from pyhangtrace.analyze.loading import loading, moved
from pyhangtrace.analyze.memory_books import books
from pyhangtrace.analyze.memory_sums import Held, Sums, add_up, hold, members_of
from pyhangtrace.analyze.memory_window import Window, window_of
from pyhangtrace.analyze.scene import Scene
from pyhangtrace.model.kinds import MemoryMode, MemoryVerdict
from pyhangtrace.model.memory import MemoryFacts, ShmSpace
from pyhangtrace.model.processes import ProcessFacts
from pyhangtrace.model.quantities import plural, size
from pyhangtrace.model.report import Cleared, MemoryFile, MemoryReport, OomVictim

# A sum this many times above what can be there misleads whoever reads it.
_ILLUSION = 2.0
# A range whose lower end is below this part of the upper one is shown whole.
_TIGHT = 0.8
_LOW_SHARE = 0.05
_FULL_STALL_PERCENT = 10.0
_FULL_SHARE = 0.01  # of a memory file system is free
_SCARCE_SHARE = 0.5

# Above this a process reads its pages in again and again.
THRASH_FAULTS_PER_S = 1000.0

# With counters of pages that come back: fewer major faults than this do not hold anybody up. Of the faults of members,
# or of the machine where only those of all are counted, so large a part must be pages that had been there before.
_FEW_FAULTS_PER_S = 100.0
_COME_BACK = 0.3
_OURS = 0.5
_MANY_REFAULTS_PER_S = 1000.0
_AHEAD = 2.0  # so many times what gets ahead is read
_PAGE = 4096  # the least a page can have
_SWAPPED_IN_PER_S = 100.0

_MOST_FILES = 16
_SMALLEST_FILE = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """What the verdict is made of."""

    scene: Scene
    members: list[ProcessFacts]
    sums: Sums | None
    held: Held | None
    window: Window | None
    killed: tuple[OomVictim, ...]
    dead_of_oom: bool

    @property
    def factor(self) -> float | None:
        """How many times what is there the sum of RSS says."""
        if self.sums is None or self.held is None or not self.held.high:
            return None
        return self.sums.rss / self.held.high


def weigh(scene: Scene, *, dead_of_oom: bool = False) -> MemoryReport:
    """The verdict on memory with its numbers; sums that cannot be made are None."""
    evidence = scene.evidence
    host, cgroup, facts = evidence.host, evidence.cgroup, evidence.memory
    members = members_of(scene)
    sums = add_up(scene, members)
    held = hold(scene, members, sums) if sums is not None else None
    case = _Case(
        scene=scene,
        members=members,
        sums=sums,
        held=held,
        window=window_of(facts, cgroup.path if cgroup is not None else None),
        killed=memory_oom.victims(scene),
        dead_of_oom=dead_of_oom,
    )
    verdict, why = _verdict(case)
    pids = [process.pid for process in members]
    driver = sum(amount for _, amount in facts.driver) if facts is not None else 0
    return MemoryReport(
        verdict=verdict,
        rss_sum=sums.rss if sums is not None else None,
        group_low=held.low if held is not None else None,
        group_high=held.high if held is not None else None,
        mode=held.mode if held is not None else MemoryMode.BRACKET,
        illusion_factor=round(case.factor, 2) if case.factor is not None else None,
        host_total=host.memory_total,
        host_available=host.memory_available,
        host_mapped=host.memory_mapped,
        cgroup_limit=cgroup.limit if cgroup is not None else None,
        cgroup_current=cgroup.usage if cgroup is not None else None,
        oom_kills=_oom_kills(scene),
        summary=_summary(case, verdict),
        explanation=_explanation(case),
        complete=held.complete if held is not None else True,
        shared=held.shared if held is not None else None,
        unique=held.unique if held is not None else None,
        outsiders=held.outsiders if held is not None else None,
        pss_sum=held.pss if held is not None else None,
        hugetlb=sums.hugetlb_max if sums is not None and sums.hugetlb else None,
        page_tables=sums.page_tables if sums is not None else None,
        merged=sums.merged or None if sums is not None else None,
        files=_files(scene),
        oom=case.killed,
        books=books(
            cgroup,
            facts.cgroup if facts is not None else None,
            members=pids,
            anon=sums.anon_low if sums is not None else None,
            mapped=held.low - sums.anon if held is not None and sums is not None else None,
            hugetlb=sums.hugetlb_max if sums is not None else None,
            driver=driver,
        ),
        loading=loading(facts.loaded, case.window, facts.loaded_s, thrash=verdict is MemoryVerdict.THRASH)
        if facts is not None
        else (),
        evidence=tuple(why),
        cleared=tuple(_cleared(case, verdict)),
    )


def _oom_kills(scene: Scene) -> int | None:
    cgroup = scene.evidence.cgroup
    if cgroup is not None and cgroup.oom_kills is not None:
        return cgroup.oom_kills
    return scene.evidence.host.oom_kills


def _verdict(case: _Case) -> tuple[MemoryVerdict, list[str]]:
    """The worst that holds, and the numbers that say so."""
    if case.killed or case.dead_of_oom:
        return MemoryVerdict.OOM_KILLED, [
            f"{memory_oom.words(victim)}: {victim.proof}" for victim in case.killed
        ]
    full = _full_shm(case.scene)
    if full is not None:
        return MemoryVerdict.SHM_FULL, [full]
    for verdict, why in (
        (MemoryVerdict.THRASH, _thrash(case)),
        (MemoryVerdict.SWAP, _swaps(case)),
        (MemoryVerdict.PRESSURE, _pressure(case)),
        (MemoryVerdict.RSS_ILLUSION, _illusion(case)),
    ):
        if why:
            return verdict, why
    return MemoryVerdict.NORMAL, []


def _spaces(scene: Scene) -> list[ShmSpace]:
    """Memory file systems of the members, the fullest first; else the /dev/shm of the machine."""
    facts, host = scene.evidence.memory, scene.evidence.host
    spaces = list(facts.shm) if facts is not None else []
    if not spaces and host.shm_size and host.shm_free is not None:
        spaces = [ShmSpace(device=0, size=host.shm_size, free=host.shm_free, pids=())]
    return spaces


def _full_shm(scene: Scene) -> str | None:
    for space in _spaces(scene):
        room = f"{size(space.free)} of {size(space.size)} free"
        if space.free < space.size * _FULL_SHARE:
            waiting = sorted(
                key[1] for key, samples in scene.samples.items() if scene.syscall(samples[-1]) == "fallocate"
            )
            threads = f", threads {', '.join(map(str, waiting))} ask for more" if waiting else ""
            return f"{space.point} is full: {room}{threads}"
        # More may have been asked for than is left. Where there is plenty by now, that has passed.
        if space.refused and space.free < space.size * _SCARCE_SHARE:
            return f"{space.point} had no room left for what {_log_of(space)} tells of: {room}"
    return None


def _log_of(space: ShmSpace) -> str:
    more = f" and {len(space.refused) - 1} more" if len(space.refused) > 1 else ""
    return f"the log of pid {space.refused[0]}{more}"


def _thrash(case: _Case) -> list[str]:
    """Pages of files that are read in, dropped to make room for others, and read in again."""
    pressure = case.scene.evidence.host.pressure
    stalled = pressure is not None and (pressure.memory_full or 0.0) > _FULL_STALL_PERCENT
    worst = max((major_faults_per_s(case.scene, pid) or 0.0 for pid in case.scene.processes), default=0.0)
    if stalled and worst > THRASH_FAULTS_PER_S:
        return [f"{worst:.0f} major faults a second while all wait for memory"]
    window = case.window
    if window is None or window.refaulted is None or window.major_faults is None:
        return []
    by_faults = (
        window.major_faults >= _FEW_FAULTS_PER_S and window.refaulted >= _COME_BACK * window.major_faults
    )
    if not by_faults and not _reads_again(case, window):
        return []
    if window.of == "the machine" and window.major_faults < _OURS * (window.host_major_faults or 0.0):
        return []  # others may be those whose pages come back
    found = [
        f"{window.major_faults:.0f} major faults a second, {window.refaulted:.0f} pages a second are read in "
        f"again after they were dropped ({window.of})"
    ]
    if window.read_bytes is not None:
        found.append(f"{size(int(window.read_bytes))}/s read from disk")
    if pressure is not None and pressure.io_some is not None:
        found.append(f"somebody waited for disks {pressure.io_some:.0f} % of the last 10 s")
    return found


def _reads_again(case: _Case, window: Window) -> bool:
    """With readahead one major fault brings in hundreds of pages: told by what is read, of which much had been there
    before, and which is far more than anybody gets ahead by. A first reading has the one, a later one the other.
    """
    if not window.major_faults or window.read_bytes is None or window.refaulted is None:
        return False
    again = window.refaulted * _PAGE
    if window.refaulted < _MANY_REFAULTS_PER_S or again < _OURS * window.read_bytes:
        return False
    facts = case.scene.evidence.memory
    ahead = max(window.read_chars or 0.0, window.rss_grown / window.seconds)
    if facts is not None:
        ahead = max(ahead, moved(facts.loaded) / (facts.loaded_s or window.seconds))
    return window.read_bytes > _AHEAD * ahead


def _swaps(case: _Case) -> list[str]:
    swapped = sum(process.memory.swap or 0 for process in case.members)
    window = case.window
    if not swapped or window is None or (window.swapped_in or 0.0) < _SWAPPED_IN_PER_S:
        return []
    if (window.major_faults or 0.0) < _SWAPPED_IN_PER_S * _COME_BACK:
        return []  # what comes back belongs to others
    return [
        f"{size(swapped)} of the job are swapped out, {window.swapped_in:.0f} pages a second come back, "
        f"{window.swapped_out or 0.0:.0f} go out"
    ]


def _pressure(case: _Case) -> list[str]:
    host, cgroup, window = case.scene.evidence.host, case.scene.evidence.cgroup, case.window
    found = []
    stall = host.pressure.memory_full if host.pressure is not None else None
    if stall is not None and stall > _FULL_STALL_PERCENT:
        found.append(f"all waited for memory {stall:.0f} % of the last 10 s")
    elif window is not None and (window.memory_full or 0.0) * 100 > _FULL_STALL_PERCENT:
        found.append(f"all waited for memory {window.memory_full or 0.0:.0%} of the time")
    if (
        host.memory_total is not None
        and host.memory_available is not None
        and host.memory_available < host.memory_total * _LOW_SHARE
    ):
        found.append(f"{size(host.memory_available)} of {size(host.memory_total)} available")
    if cgroup is not None and cgroup.limit is not None and cgroup.usage is not None:
        reclaimable = _reclaimable(case.scene.evidence.memory, cgroup.cache)
        if reclaimable is not None and cgroup.usage - reclaimable > cgroup.limit * (1 - _LOW_SHARE):
            hits = (
                f", which was met {window.limit_hits} times in {window.seconds:.1f} s"
                if window is not None and window.limit_hits
                else ""
            )
            found.append(
                f"{size(cgroup.usage - reclaimable)} that cannot be dropped, of a limit of {size(cgroup.limit)}"
                f"{hits}"
            )
    return found


def _reclaimable(facts: MemoryFacts | None, cache: int | None) -> int | None:
    """Page cache that can be dropped: what lies in tmpfs and shared memory has no other place."""
    if cache is None:
        return None
    shmem = facts.cgroup.shmem if facts is not None and facts.cgroup is not None else None
    return max(0, cache - (shmem or 0))


def _illusion(case: _Case) -> list[str]:
    sums, factor, host = case.sums, case.factor, case.scene.evidence.host
    if sums is None or factor is None or sums.processes < 2 or factor < _ILLUSION:
        return []
    found = []
    if host.memory_total is not None and sums.rss > 0.5 * host.memory_total:
        found.append(f"the sum of RSS is {size(sums.rss)} on a machine of {size(host.memory_total)}")
    if host.memory_mapped is not None and sums.shared > _ILLUSION * host.memory_mapped:
        found.append(
            f"{size(sums.shared)} of files and shared memory in the sum, {size(host.memory_mapped)} are mapped on "
            "the whole machine"
        )
    return found


def major_faults_per_s(scene: Scene, pid: int) -> float | None:
    """Major page faults a second within the window, None with one look."""
    facts = scene.evidence.memory
    window = window_of(facts, None)
    if window is not None and pid in window.processes:
        return window.processes[pid].major_faults
    if scene.evidence.window_s <= 0:
        return None
    total = 0
    for key in scene.threads_of(pid):
        samples = scene.samples[key]
        total += max(0, samples[-1].major_faults - samples[0].major_faults)
    return round(total / scene.evidence.window_s, 1)


def _summary(case: _Case, verdict: MemoryVerdict) -> str:
    host, cgroup = case.scene.evidence.host, case.scene.evidence.cgroup
    available = f", {size(host.memory_available)} available" if host.memory_available is not None else ""
    if verdict is MemoryVerdict.OOM_KILLED:
        if case.killed:
            more = f", and {len(case.killed) - 1} more" if len(case.killed) > 1 else ""
            return f"{memory_oom.words(case.killed[0])}{more}{available}"
        return f"a member was killed for want of memory{available}"
    if verdict is MemoryVerdict.SHM_FULL:
        return _full_shm(case.scene) or "/dev/shm is full"
    sums, held = case.sums, case.held
    if sums is None or held is None:
        return f"memory of the group could not be read{available}"
    holds = _holds(held)
    if verdict is MemoryVerdict.RSS_ILLUSION:
        each = sums.mappers_rss // sums.mappers
        what = f"is one set of pages mapped {sums.mappers} times"
        if not _is_one_set(sums, held):
            what = "counts pages again for each that maps them"
        return f"RSS {sums.mappers} x {size(each)} = {size(sums.mappers_rss)} {what}: {holds}{available}"
    limit = f" of a limit of {size(cgroup.limit)}" if cgroup is not None and cgroup.limit else ""
    what = {
        MemoryVerdict.PRESSURE: "memory is short: ",
        MemoryVerdict.THRASH: "pages are read in again and again: ",
        MemoryVerdict.SWAP: "memory is swapped in and out: ",
    }.get(verdict, "")
    return f"{what}{holds}{limit}{available}"


def _holds(held: Held) -> str:
    return f"the group holds {_range(held)}"


def _range(held: Held) -> str:
    """What is there, and where to learn it better if that says little."""
    if held.mode is MemoryMode.PFN_UNION and held.complete:
        return size(held.low)
    if held.low < held.high * _TIGHT:
        return f"{size(held.low)} to {size(held.high)}{'' if held.walked else ' (--exact tells)'}"
    return f"at most {size(held.high)}"


def _is_one_set(sums: Sums, held: Held) -> bool:
    """Most of what is there is in the RSS of several."""
    alone = held.unique if held.unique is not None else sums.anon
    return 2 * alone <= held.high


def _explanation(case: _Case) -> str:
    """The sum of RSS in one line."""
    sums, held, factor = case.sums, case.held, case.factor
    if sums is None or held is None or factor is None:
        return ""
    amount = _range(held)
    if sums.mappers > 1 and factor >= _ILLUSION:
        each = sums.mappers_rss // sums.mappers
        what = (
            "is one set of pages" if _is_one_set(sums, held) else "counts pages again for each that maps them"
        )
        smaller = sums.processes - sums.mappers
        others = f" with {smaller} smaller {plural(smaller, 'process', 'processes')}" if smaller else ""
        return f"{sums.mappers} x {size(each)} of RSS {what}: {size(sums.rss)} in sum{others}, {amount} in memory"
    if sums.processes == 1:
        return f"{size(sums.rss)} of RSS, {amount} in memory"
    return f"{sums.processes} processes, {size(sums.rss)} of RSS in sum, {amount} in memory"


def _files(scene: Scene) -> tuple[MemoryFile, ...]:
    """The files that weigh most in the sum of RSS."""
    facts = scene.evidence.memory
    mapped: dict[tuple[int, int], dict[str, int]] = {}
    in_rss: dict[tuple[int, int], int] = {}
    if facts is not None:
        for device, inode, pid, amount in facts.mapped:
            mapped.setdefault((device, inode), {})[str(pid)] = amount
        for process in facts.exact.processes if facts.exact is not None else ():
            for share in process.files:
                key = (share.device, share.inode)
                in_rss[key] = in_rss.get(key, 0) + share.rss + share.hugetlb
    found = []
    for file in scene.evidence.mapped_files:
        key = (file.device, file.inode)
        by_pid = mapped.get(key) or {str(pid): file.size or 0 for pid in file.mappers}
        if (file.size or 0) < _SMALLEST_FILE:
            continue
        found.append(
            MemoryFile(
                path=file.path,
                kind=file.kind,
                size=file.size,
                resident=file.resident,
                mapped_by=by_pid,
                in_rss=in_rss.get(key),
            )
        )
    found.sort(key=lambda file: (-_weight(file), file.path))
    return tuple(found[:_MOST_FILES])


def _weight(file: MemoryFile) -> int:
    if file.in_rss is not None:
        return file.in_rss
    most = file.resident if file.resident is not None else file.size or 0
    return sum(min(most, amount) for amount in file.mapped_by.values())


def _cleared(case: _Case, verdict: MemoryVerdict) -> list[Cleared]:
    """What it is not, as far as numbers say so."""
    host, cgroup, window = case.scene.evidence.host, case.scene.evidence.cgroup, case.window
    found: list[tuple[MemoryVerdict, str, str]] = []
    kills = _oom_kills(case.scene)
    if kills == 0:
        where = (
            f"control group {cgroup.path}" if cgroup is not None and cgroup.oom_kills == 0 else "the machine"
        )
        found.append((MemoryVerdict.OOM_KILLED, "memory.oom", f"no OOM kill counted by {where}"))
    elif kills is not None and not case.killed:
        found.append(
            (
                MemoryVerdict.OOM_KILLED,
                "memory.oom",
                f"{kills} OOM {plural(kills, 'kill', 'kills')} counted, none known to be of this job",
            )
        )
    if not _pressure(case) and host.memory_available is not None and host.memory_total is not None:
        stall = host.pressure.memory_full if host.pressure is not None else None
        waited = f", all waited for memory {stall:.1f} % of the last 10 s" if stall is not None else ""
        found.append(
            (
                MemoryVerdict.PRESSURE,
                "memory.pressure",
                f"{size(host.memory_available)} of {size(host.memory_total)} available{waited}",
            )
        )
    if window is not None and window.major_faults is not None and not _thrash(case):
        again = (
            f", {window.refaulted:.0f} pages a second read in again" if window.refaulted is not None else ""
        )
        found.append(
            (MemoryVerdict.THRASH, "memory.thrash", f"{window.major_faults:.0f} major faults a second{again}")
        )
    swapped = sum(process.memory.swap or 0 for process in case.members)
    if not _swaps(case) and window is not None and window.swapped_in is not None:
        back = f", {window.swapped_in:.0f} pages a second come back" if swapped else ""
        found.append((MemoryVerdict.SWAP, "memory.swap", f"{size(swapped)} swapped out{back}"))
    room = _shm_room(case.scene)
    if room is not None and _full_shm(case.scene) is None:
        found.append((MemoryVerdict.SHM_FULL, "memory.shm_full", room))
    return [
        Cleared(suspect=suspect, because=because) for kind, suspect, because in found if kind is not verdict
    ]


def _shm_room(scene: Scene) -> str | None:
    spaces = _spaces(scene)
    if not spaces:
        return None
    words = f"{size(spaces[0].free)} of {size(spaces[0].size)} free in {spaces[0].point}"
    told = next((space for space in spaces if space.refused), None)
    if told is not None:
        words += f"; {_log_of(told)} tells of no room in {told.point}, where {size(told.free)} are free now"
    return words
