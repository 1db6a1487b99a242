"""The group of a process, on process tables as each launcher leaves them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest

from pyhangtrace.discover import job, recognise, roles
from pyhangtrace.model.kinds import Role
from pyhangtrace.model.process_table import ProcessStat, ProcessTable

SPAWN = (
    "python",
    "-c",
    "from multiprocessing.spawn import spawn_main; spawn_main()",
    "--multiprocessing-fork",
)
TRACKER = ("python", "-c", "from multiprocessing.resource_tracker import main;main(5)")


@dataclass
class Host:
    """A made-up host: `add` in the order of start."""

    rows: list[ProcessStat] = field(default_factory=list)
    command: dict[int, tuple[str, ...]] = field(default_factory=dict)
    variables: dict[int, dict[str, str]] = field(default_factory=dict)
    ends: dict[int, list[tuple[str, str]]] = field(default_factory=dict)

    def add(
        self,
        pid: int,
        ppid: int,
        *arguments: str,
        comm: str | None = None,
        uid: int = 1000,
        flags: int = 0,
        sid: int = 0,
        **variables: str,
    ) -> None:
        name = comm if comm is not None else recognise.base_name(arguments[0])[:15]
        self.rows.append(
            ProcessStat(
                pid=pid,
                comm=name,
                state="S",
                ppid=ppid,
                sid=sid,
                start_ticks=len(self.rows),
                uid=uid,
                flags=flags,
            )
        )
        self.command[pid] = arguments
        self.variables[pid] = variables

    @property
    def table(self) -> ProcessTable:
        return ProcessTable.of(self.rows)

    def arguments(self, pids: Sequence[int]) -> Mapping[int, tuple[str, ...]]:
        return {pid: self.command[pid] for pid in pids}

    def environs(self, pids: Sequence[int], names: Sequence[str]) -> Mapping[int, Mapping[str, str]]:
        return {
            pid: {name: value for name, value in self.variables[pid].items() if name in names} for pid in pids
        }

    def connections(self, pids: Sequence[int]) -> Mapping[int, frozenset[tuple[str, str]]]:
        return {pid: frozenset(self.ends.get(pid, ())) for pid in pids}

    def talk(self, *pids: int) -> None:
        """Each of these is connected with each other one."""
        for one in pids:
            for other in pids:
                if one != other:
                    self.ends.setdefault(one, []).append((f"lo:{one}-{other}", f"lo:{other}-{one}"))

    def find(self, *pids: int, ourselves: tuple[int, ...] = ()) -> job.Group:
        return job.find(pids, self.table, self, ourselves=ourselves)

    def roles(self, *pids: int, **more: object) -> dict[int, roles.Identity]:
        return roles.assign(self.find(*pids), self.table, **more)  # type: ignore[arg-type]


def ranks(identities: Mapping[int, roles.Identity]) -> dict[int, int | None]:
    return {
        pid: next((claim.rank for claim in identity.claims if claim.rank is not None), None)
        for pid, identity in identities.items()
        if identity.claims
    }


@pytest.fixture
def host() -> Host:
    made = Host()
    made.add(1, 0, "/sbin/init", uid=0)
    made.add(2, 0, comm="kthreadd", uid=0, flags=0x00200000)
    made.add(50, 1, "-bash", comm="bash")
    return made


def torchrun(host: Host, ranks: int = 2) -> None:
    host.add(100, 50, "/usr/bin/python3", "/usr/bin/torchrun", "--nproc-per-node", str(ranks), "train.py")
    for rank in range(ranks):
        host.add(
            101 + rank,
            100,
            "/usr/bin/python3",
            "-u",
            "train.py",
            RANK=str(rank),
            LOCAL_RANK=str(rank),
            WORLD_SIZE=str(ranks),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT="29500",
        )


@pytest.mark.parametrize("asked", [100, 101, 102, 103, 104])
def test_torchrun_from_any_process(host: Host, asked: int) -> None:
    torchrun(host)
    loader = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    host.add(103, 102, "/usr/bin/python3", "-u", "train.py", **loader)
    host.add(104, 102, *TRACKER, **loader)
    found = host.find(asked)
    assert found.root == 100
    assert set(found.members) == {100, 101, 102, 103, 104}
    assert found.found_by.startswith("launcher torchrun 100")
    identities = host.roles(asked)
    assert {pid: identity.role for pid, identity in identities.items()} == {
        100: Role.LAUNCHER,
        101: Role.RANK,
        102: Role.RANK,
        103: Role.DATA_WORKER,
        104: Role.OTHER,
    }
    assert ranks(identities) == {101: 0, 102: 1}
    assert roles.world_size(identities) == 2


def test_the_agent_of_a_cluster_job_has_its_nodes_rank(host: Host) -> None:
    torchrun(host)
    host.variables[100].update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="29500")
    identities = host.roles(102)
    assert identities[100].role is Role.LAUNCHER
    assert ranks(identities) == {101: 0, 102: 1}


@pytest.mark.parametrize("asked", [200, 202])
@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_multiprocessing_children(host: Host, asked: int, method: str) -> None:
    script = ("python", "train.py")
    child = SPAWN if method == "spawn" else script
    host.add(200, 50, *script)
    host.add(201, 200, *TRACKER)
    host.add(202, 200, *child)
    host.add(203, 200, *child)
    assert set(host.find(asked).members) == {200, 201, 202, 203}
    identities = host.roles(asked)
    assert {pid: identity.role for pid, identity in identities.items()} == {
        200: Role.LAUNCHER,
        201: Role.OTHER,
        202: Role.RANK,
        203: Role.RANK,
    }
    assert [identities[pid].claims[0].source for pid in (202, 203)] == ["start order", "start order"]
    memory = {202: {"RANK": "1", "WORLD_SIZE": "2"}, 203: {"RANK": "0", "WORLD_SIZE": "2"}}
    identities = host.roles(asked, program_environs=memory)
    assert ranks(identities) == {202: 1, 203: 0}
    assert identities[202].claims[0].source == "program environ RANK"
    assert set(roles.wants_program_environ(host.find(asked), host.table)) == {200, 202, 203}


def test_data_loader_workers_of_a_single_process_are_no_ranks(host: Host) -> None:
    host.add(200, 50, "python", "train.py")
    host.add(201, 200, "python", "train.py")
    host.add(202, 200, "python", "train.py")
    identities = host.roles(200, data_workers={201, 202})
    assert {pid: identity.role for pid, identity in identities.items()} == {
        200: Role.OTHER,
        201: Role.DATA_WORKER,
        202: Role.DATA_WORKER,
    }
    assert ranks(identities) == {}


@pytest.mark.parametrize("starter", ["python run_tests.py", "bash", "make", "python -m pytest tests"])
def test_plain_siblings_share_a_store(host: Host, starter: str) -> None:
    words = starter.split()
    host.add(300, 50, *words)
    for rank in range(3):
        host.add(
            301 + rank,
            300,
            "python",
            "rank.py",
            RANK=str(rank),
            WORLD_SIZE="3",
            MASTER_ADDR="10.0.0.1",
            MASTER_PORT="4000",
        )
    host.add(
        310, 300, "python", "rank.py", RANK="0", WORLD_SIZE="1", MASTER_ADDR="10.0.0.1", MASTER_PORT="4001"
    )
    host.add(311, 300, "python", "something_else.py")
    found = host.find(302)
    program = starter == "python run_tests.py"
    assert set(found.members) == {301, 302, 303} | ({300} if program else set())
    identities = host.roles(302)
    assert ranks(identities) == {301: 0, 302: 1, 303: 2}
    if program:
        assert identities[300].role is Role.LAUNCHER


def without_a_store(host: Host, rank: int, *, world: int = 3, wrapper: int = 0) -> None:
    """A rank whose store only the program knows, below a wrapper of its own."""
    host.add(500 + wrapper, 50, "timeout", "100", "python", "rank.py")
    host.add(501 + wrapper, 500 + wrapper, "python", "rank.py", RANK=str(rank), WORLD_SIZE=str(world))


def test_ranks_without_a_store_are_those_that_run_the_same(host: Host) -> None:
    for rank in range(3):
        without_a_store(host, rank, wrapper=10 * rank)
    host.add(600, 511, "python", "rank.py", RANK="1", WORLD_SIZE="3")  # forked by rank 1
    without_a_store(host, 0, world=1, wrapper=200)  # a job of its own
    host.add(601, 50, "python", "other.py", RANK="0", WORLD_SIZE="3")
    found = host.find(511)
    assert set(found.members) == {501, 511, 521, 600}
    assert ranks(host.roles(511)) == {501: 0, 511: 1, 521: 2}


def test_ranks_of_other_sessions_are_not_of_one_job_by_their_command_alone(host: Host) -> None:
    host.add(501, 50, "python", "rank.py", RANK="0", WORLD_SIZE="2", sid=501)
    host.add(502, 50, "python", "rank.py", RANK="1", WORLD_SIZE="2", sid=502)
    assert set(host.find(501).members) == {501}


@pytest.mark.parametrize("wrapper", ["timeout 100", "nice", "bash -c", "numactl --all"])
@pytest.mark.parametrize("asked", [500, 501, 511])
def test_what_a_rank_is_run_through_is_no_rank(host: Host, wrapper: str, asked: int) -> None:
    for rank in range(2):
        variables = {
            "RANK": str(rank),
            "WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "4000",
        }
        host.add(500 + 10 * rank, 50, *wrapper.split(), "python", "rank.py", **variables)
        host.add(501 + 10 * rank, 500 + 10 * rank, "python", "rank.py", **variables)
    identities = host.roles(asked)
    assert ranks(identities) == {501: 0, 511: 1}
    assert all(identity.role is Role.LAUNCHER for pid, identity in identities.items() if pid in (500, 510))


def test_two_jobs_that_run_the_same_are_not_one(host: Host) -> None:
    for wrapper, rank in enumerate((0, 1, 0, 1)):
        without_a_store(host, rank, world=2, wrapper=10 * wrapper)
    assert set(host.find(501).members) == {501}


def test_mpirun(host: Host) -> None:
    host.add(400, 50, "mpirun", "-n", "2", "python", "solve.py")
    for rank in range(2):
        host.add(
            401 + rank,
            400,
            "python",
            "solve.py",
            OMPI_COMM_WORLD_RANK=str(rank),
            OMPI_COMM_WORLD_SIZE="2",
            OMPI_COMM_WORLD_LOCAL_RANK=str(rank),
            PMIX_RANK=str(rank),
        )
    assert set(host.find(402).members) == {400, 401, 402}
    identities = host.roles(402)
    assert ranks(identities) == {401: 0, 402: 1}
    assert identities[402].claims[0].local_rank == 1
    assert host.find(402).framework == "mpi"


def vllm(host: Host) -> None:
    host.add(500, 50, "/venv/bin/python3", "/venv/bin/vllm", "serve", "model")
    host.add(501, 500, *TRACKER)
    host.add(502, 500, "VLLM::EngineCore", comm="VLLM::EngineCor")
    host.add(503, 502, "VLLM::Worker_TP0", comm="VLLM::Worker_TP")
    host.add(504, 502, "VLLM::Worker_TP1", comm="VLLM::Worker_TP")


@pytest.mark.parametrize("asked", [500, 502, 504])
def test_vllm(host: Host, asked: int) -> None:
    vllm(host)
    assert set(host.find(asked).members) == {500, 501, 502, 503, 504}
    identities = host.roles(asked)
    assert [identities[pid].role for pid in (500, 502, 503)] == [Role.LAUNCHER, Role.ENGINE, Role.RANK]
    assert ranks(identities) == {503: 0, 504: 1}
    assert identities[504].claims[0].coords == (("tp", 1),)


@pytest.mark.parametrize("asked", [600, 602, 603])
def test_sglang(host: Host, asked: int) -> None:
    host.add(600, 50, "python", "-m", "sglang.launch_server", "--tp", "2")
    host.add(601, 600, "sglang::scheduler_TP0", comm="sglang::schedul")
    host.add(602, 600, "sglang::scheduler_TP1", comm="sglang::schedul")
    host.add(603, 600, "sglang::detokenizer", comm="sglang::detoken")
    found = host.find(asked)
    assert set(found.members) == {600, 601, 602, 603}
    assert found.framework == "sglang"
    identities = host.roles(asked)
    assert [identities[pid].role for pid in (601, 602, 603)] == [
        Role.SCHEDULER,
        Role.SCHEDULER,
        Role.DETOKENIZER,
    ]
    assert ranks(identities) == {601: 0, 602: 1}


@pytest.mark.parametrize("asked", [650, 651, 652, 653, 654, 655, 656])
def test_a_server_in_parts_is_found_from_each(host: Host, asked: int) -> None:
    host.add(650, 50, "python", "my_service.py")
    host.add(651, 650, *TRACKER)
    host.add(652, 650, "prod::EngineCore_DP1", comm="prod::EngineCor")
    host.add(653, 652, "prod::Worker_DP1_TP0", comm="prod::Worker_DP")
    host.add(654, 652, *SPAWN)
    host.add(655, 650, "prod::DPCoordinator", comm="prod::DPCoordin")
    host.add(656, 650, "prod::APIServer_0", comm="prod::APIServer")
    found = host.find(asked)
    assert found.members == tuple(range(650, 657))
    roles_of = {pid: one.role for pid, one in host.roles(asked).items()}
    assert (roles_of[652], roles_of[653]) == (Role.ENGINE, Role.RANK)
    assert host.roles(asked)[652].claims[0].coords == (("dp", 1),)
    assert host.roles(asked)[652].claims[0].rank is None


@pytest.mark.parametrize(
    ("comm", "role"),
    [
        ("sglang::detoken", Role.DETOKENIZER),
        ("sglang::schedul", Role.SCHEDULER),
        ("VLLM::EngineCor", Role.ENGINE),
        ("VLLM::Worker_TP", Role.RANK),
        ("sglang::data_pa", Role.OTHER),
        ("python", Role.OTHER),
    ],
)
def test_what_a_part_of_a_server_was_is_known_when_only_its_name_is_left(
    host: Host, comm: str, role: Role
) -> None:
    host.add(600, 50, "python", "-m", "sglang.launch_server")
    host.add(601, 600, comm=comm)
    assert host.roles(600)[601].role is role


def test_a_title_with_several_coordinates_is_no_rank(host: Host) -> None:
    host.add(600, 50, "python", "-m", "sglang.launch_server")
    host.add(601, 600, "sglang::scheduler_DP1_PP0_TP3", comm="sglang::schedul")
    (claim,) = host.roles(601)[601].claims
    assert claim.rank is None
    assert claim.coords == (("dp", 1), ("pp", 0), ("tp", 3))


def test_ray_keeps_to_the_job(host: Host) -> None:
    host.add(700, 1, "/ray/raylet/raylet", "--raylet_socket_name=x")
    host.add(701, 700, "ray::Trainer.step", comm="ray::Trainer", RAY_JOB_ID="01000000")
    host.add(702, 700, "ray::Trainer.step", comm="ray::Trainer", RAY_JOB_ID="01000000")
    host.add(703, 700, "ray::Other", comm="ray::Other", RAY_JOB_ID="02000000")
    host.add(704, 702, "python", "helper.py", RAY_JOB_ID="01000000")
    assert set(host.find(701).members) == {701, 702, 704}


def ray_cluster(host: Host) -> None:
    """Two jobs on one cluster. Most workers were started ahead; all are connected with the directory (720)."""
    host.add(720, 1, "/lib/ray/core/src/ray/gcs/gcs_server", comm="gcs_server")
    host.add(700, 1, "/lib/ray/core/src/ray/raylet/raylet", comm="raylet")
    for worker, job_id in ((701, "ffffffff"), (702, "ffffffff"), (703, "01000000"), (705, "ffffffff")):
        host.add(worker, 700, "ray::Trainer.step", comm="ray::Trainer", RAY_JOB_ID=job_id)
    host.add(706, 700, "ray::IDLE", comm="ray::IDLE", RAY_JOB_ID="ffffffff")
    host.add(707, 700, "ray::DashboardAgent", comm="ray::DashboardA")
    host.add(708, 702, "python", "helper.py", RAY_JOB_ID="ffffffff")
    host.add(730, 1, "python", "train.py")
    host.add(740, 1, "python", "serve.py")
    host.add(750, 1, "redis-server")
    for one, other in (
        (730, 701),
        (730, 702),
        (730, 703),
        (740, 705),
        (750, 701),
        (750, 705),
        (707, 701),
        (707, 705),
    ):
        host.talk(one, other)
    for client in (700, 701, 702, 703, 705, 706, 707, 730, 740):
        host.ends.setdefault(client, []).append((f"lo:{client}-gcs", "lo:gcs"))
        host.ends.setdefault(720, []).append(("lo:gcs", f"lo:{client}-gcs"))


@pytest.mark.parametrize("asked", [701, 703, 708, 730])
def test_workers_of_ray_started_ahead_are_of_who_drives_them(host: Host, asked: int) -> None:
    ray_cluster(host)
    assert set(host.find(asked).members) == {701, 702, 703, 708, 730}


def test_another_job_of_the_cluster(host: Host) -> None:
    ray_cluster(host)
    assert set(host.find(705).members) == {705, 740}
    assert set(host.find(750).members) == {750}


def test_jobs_of_ray_that_use_each_other_s_workers_are_kept_apart(host: Host) -> None:
    ray_cluster(host)
    host.variables[705]["RAY_JOB_ID"] = "02000000"
    host.talk(701, 705)
    assert set(host.find(703).members) == {703}
    assert set(host.find(701).members) == {701}


def test_programs_without_ray_are_not_asked_for_their_connections(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.add(730, 1, "python", "train.py")
    monkeypatch.setattr(Host, "connections", lambda host, pids: pytest.fail("asked"))
    assert set(host.find(730).members) == {730}


@pytest.mark.parametrize("asked", [101, 110, 112, 113])
def test_a_compiler_leads_to_whoever_builds(host: Host, asked: int) -> None:
    torchrun(host)
    host.add(110, 102, "ninja", "-v", RANK="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="29500")
    host.add(111, 110, "/bin/sh", "-c", "nvcc x.cu", RANK="1")
    host.add(112, 111, "/usr/local/cuda/bin/nvcc", "x.cu", RANK="1")
    host.add(113, 112, "cicc", "x.ii", RANK="1")
    found = host.find(asked)
    assert {100, 101, 102, 110, 111, 112, 113} == set(found.members)
    identities = host.roles(asked)
    assert [identities[pid].role for pid in (110, 112, 113)] == [Role.COMPILER] * 3
    assert ranks(identities) == {101: 0, 102: 1}


def test_a_compiler_of_a_person_leads_nowhere(host: Host) -> None:
    host.add(900, 50, "bash", "-c", "make && ./train")
    host.add(901, 900, "make")
    host.add(902, 901, "g++", "x.cpp")
    host.add(903, 902, "cc1plus", "x.cpp")
    assert set(host.find(903).members) == {902, 903}


@pytest.mark.parametrize(
    "arguments",
    [
        ("-zsh",),
        ("tmux", "new-session"),
        ("sshd: me@pts/0",),
        ("/usr/bin/python3", "-m", "pytest", "-x"),
        ("/usr/bin/python3", "/usr/local/bin/pytest"),
        ("/usr/bin/python3", "-B", "-m", "unittest", "discover"),
        ("/usr/sbin/cron", "-f"),
        ("make", "test"),
        ("/usr/bin/python3", "/usr/bin/hangtrace", "demo"),
    ],
)
def test_never_up_through(host: Host, arguments: tuple[str, ...]) -> None:
    host.add(800, 50, *arguments)
    host.add(801, 800, *arguments)  # forked, as a worker would be
    host.add(802, 801, "./a.out")
    host.add(803, 801, "./b.out")
    assert set(host.find(802).members) == {802}


def test_not_up_to_another_user(host: Host) -> None:
    host.add(900, 1, "python", "service.py", uid=0)
    host.add(901, 900, "python", "service.py", uid=1000)
    host.add(902, 901, "python", "service.py", uid=1000)
    assert set(host.find(902).members) == {901, 902}


def test_fork_of_a_plain_program(host: Host) -> None:
    host.add(900, 50, "./solver", "-n", "2")
    host.add(901, 900, "./solver", "-n", "2")
    host.add(902, 50, "./solver", "-n", "2")
    assert set(host.find(901).members) == {900, 901}


def test_several_pids_are_a_union_and_observers_stay_out(host: Host) -> None:
    host.add(900, 50, "./one")
    host.add(901, 50, "./two")
    host.add(902, 901, "python", "/usr/bin/hangtrace", "attach", "901")
    host.add(903, 902, "python", "/usr/bin/hangtrace", "attach", "901")
    assert host.find(900, 901, ourselves=(902, 903)).members == (900, 901)


def test_a_rank_that_starts_the_others_is_a_rank(host: Host) -> None:
    store = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    host.add(900, 50, "python", "train.py", RANK="0", **store)
    host.add(901, 900, "python", "train.py", "worker", RANK="1", **store)
    host.add(902, 900, "python", "train.py", "worker", RANK="2", **store)
    identities = host.roles(902)
    assert ranks(identities) == {900: 0, 901: 1, 902: 2}
    assert identities[900].role is Role.RANK


def test_a_helper_of_a_rank_that_knows_its_number_only_in_memory(host: Host) -> None:
    host.add(900, 50, "python", "train.py")
    host.add(901, 900, "python", "train.py")
    host.add(902, 900, "python", "train.py")
    host.add(903, 901, "sleep", "3600", RANK="0", WORLD_SIZE="2")
    host.add(904, 902, "g++", "-c", "x.cpp", RANK="1", WORLD_SIZE="2")
    found = host.find(901)
    assert set(roles.wants_program_environ(found, host.table)) == {900, 901, 902}
    memory = {901: {"RANK": "0", "WORLD_SIZE": "2"}, 902: {"RANK": "1", "WORLD_SIZE": "2"}}
    identities = host.roles(901, program_environs=memory)
    assert ranks(identities) == {901: 0, 902: 1}
    assert {pid: identity.role for pid, identity in identities.items()} == {
        900: Role.LAUNCHER,
        901: Role.RANK,
        902: Role.RANK,
        903: Role.OTHER,
        904: Role.COMPILER,
    }


def test_the_only_rank_of_a_script(host: Host) -> None:
    host.add(900, 50, "python", "start.py")
    host.add(901, 900, "python", "rank.py", RANK="3", WORLD_SIZE="8", MASTER_ADDR="10.0.0.1", MASTER_PORT="1")
    identities = host.roles(901)
    assert ranks(identities) == {901: 3}
    assert identities[901].role is Role.RANK


def test_a_parent_that_is_rank_0_in_memory_only(host: Host) -> None:
    host.add(900, 50, "python", "train.py")
    host.add(901, 900, "python", "train.py")
    host.add(902, 900, "python", "train.py")
    memory = {900 + rank: {"RANK": str(rank), "WORLD_SIZE": "3"} for rank in range(3)}
    assert ranks(host.roles(902, program_environs=memory)) == {900: 0, 901: 1, 902: 2}
    memory[900]["RANK"] = "2"  # it prepared the environment of the last one, and is none itself
    identities = host.roles(902, program_environs=memory)
    assert ranks(identities) == {901: 1, 902: 2}
    assert identities[900].role is Role.LAUNCHER


def test_zombies_of_who_started_the_ranks_belong_to_the_job(host: Host) -> None:
    store = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    host.add(900, 50, "python", "start.py")
    host.add(901, 900, "python", "rank.py", RANK="0", **store)
    host.add(902, 900, "python", "rank.py", RANK="1", **store)
    host.add(903, 900, comm="python")
    host.rows[-1] = replace(host.rows[-1], state="Z")
    assert host.find(901).members == (900, 901, 902, 903)


def test_an_ended_rank_leads_to_the_others_through_who_started_it(host: Host) -> None:
    host.add(300, 50, "python", "run.py")
    host.add(301, 300, "python", "run.py")
    host.add(302, 300, comm="python")
    host.rows[-1] = replace(host.rows[-1], state="Z", threads=1)
    assert set(host.find(302).members) == {300, 301, 302}


def test_a_process_whose_main_thread_alone_has_ended_lives(host: Host) -> None:
    host.add(300, 50, "server")
    host.rows[-1] = replace(host.rows[-1], state="Z", threads=3)
    assert host.table[300].state == "S"


def test_shells_that_run_nothing_but_us_belong_to_us() -> None:
    host = Host()
    host.add(10, 1, "python", "driver.py")
    host.add(11, 10, "sh", "-c", "hangtrace attach 20")
    host.add(12, 11, "hangtrace", "attach", "20")
    assert job.wrappers(12, host.table, host) == (11,)
    host.add(13, 11, "cat")
    assert job.wrappers(12, host.table, host) == ()


FORKED = 0x40  # PF_FORKNOEXEC


def _with_rank(rank: int) -> dict[str, str]:
    return {"RANK": str(rank), "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


def test_what_an_ended_rank_has_forked_is_no_rank(host: Host) -> None:
    host.add(100, 50, "python", "train.py", **_with_rank(0))
    host.add(101, 1, "python", "train.py", flags=FORKED, **_with_rank(1))  # of one that has ended
    host.add(102, 50, "python", "train.py", **_with_rank(2))
    found = host.roles(100)
    assert ranks(found) == {100: 0, 102: 2}
    assert (found[101].role, found[101].forked_from_rank) == (Role.OTHER, 1)


def test_ranks_that_were_all_forked_stay_ranks_when_who_forked_them_is_gone(host: Host) -> None:
    for rank in range(3):
        host.add(100 + rank, 1, "python", "train.py", flags=FORKED, **_with_rank(rank))
    assert ranks(host.roles(100)) == {100: 0, 101: 1, 102: 2}


def test_a_forked_rank_whose_maker_lives_stays_one(host: Host) -> None:
    host.add(90, 50, "python", "launch.py")
    host.add(100, 50, "python", "train.py", **_with_rank(0))
    host.add(101, 90, "python", "launch.py", flags=FORKED, **_with_rank(1))
    host.add(102, 90, "python", "launch.py", flags=FORKED, **_with_rank(2))
    assert ranks(host.roles(100)) == {100: 0, 101: 1, 102: 2}
