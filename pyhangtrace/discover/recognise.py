"""How launchers, workers and bystanders of the frameworks look from outside. Data; the rules are in `job` and `roles`.

Sources: the process titles and variables that the named frameworks set (vLLM V1, SGLang, Ray, torch elastic,
DeepSpeed, Open MPI, MPICH, Slurm).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pyhangtrace.model.kinds import Role
from pyhangtrace.model.programs import is_compiler
from pyhangtrace.model.ranks import JOB_VARIABLES


@dataclass(frozen=True, slots=True, kw_only=True)
class RankVariables:
    """The variables by which one launcher tells a process its rank; `framework` None where many use the same."""

    framework: str | None
    rank: str
    local_rank: str | None = None
    world_size: str | None = None


RANK_VARIABLES: tuple[RankVariables, ...] = (
    RankVariables(framework=None, rank="RANK", local_rank="LOCAL_RANK", world_size="WORLD_SIZE"),
    RankVariables(
        framework="mpi",
        rank="OMPI_COMM_WORLD_RANK",
        local_rank="OMPI_COMM_WORLD_LOCAL_RANK",
        world_size="OMPI_COMM_WORLD_SIZE",
    ),
    RankVariables(framework="mpi", rank="PMIX_RANK"),
    RankVariables(framework="mpi", rank="PMI_RANK", local_rank="MPI_LOCALRANKID", world_size="PMI_SIZE"),
    RankVariables(
        framework="slurm", rank="SLURM_PROCID", local_rank="SLURM_LOCALID", world_size="SLURM_NTASKS"
    ),
)

_RANK_NAMES = {
    name
    for variables in RANK_VARIABLES
    for name in (variables.rank, variables.local_rank, variables.world_size)
    if name is not None
}
IDENTITY_VARIABLES: tuple[str, ...] = tuple(
    sorted(_RANK_NAMES | {name for names in JOB_VARIABLES for name in names} | {"GROUP_RANK", "ROLE_RANK"})
)

# Time limits of serving engines, in seconds: variables, and options of their command lines.
LIMIT_VARIABLES = ("VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS",)
LIMIT_OPTIONS = ("--watchdog-timeout",)
READ_VARIABLES = (*IDENTITY_VARIABLES, *LIMIT_VARIABLES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Title:
    """A process title (setproctitle) and what it makes of the process."""

    pattern: re.Pattern[str]
    framework: str
    role: Role
    worker: bool = False  # the parent started it as part of the same job


# vLLM puts VLLM_PROCESS_NAME_PREFIX before each of its titles, "VLLM" unless that is set.
_PREFIX = r"^[\w.-]+::"
_COORDS = r"(?P<coords>(_(DP|PP|PCP|TP|DCP|EP)\d+)*)$"
TITLES: tuple[Title, ...] = (
    Title(
        pattern=re.compile(r"^sglang::scheduler(?P<coords>(_[A-Z_]+?\d+)*)$"),
        framework="sglang",
        role=Role.SCHEDULER,
        worker=True,
    ),
    Title(
        pattern=re.compile(r"^sglang::detokenizer"), framework="sglang", role=Role.DETOKENIZER, worker=True
    ),
    Title(pattern=re.compile(r"^sglang::"), framework="sglang", role=Role.OTHER, worker=True),
    Title(
        pattern=re.compile(r"^sgl_diffusion::scheduler"), framework="sglang", role=Role.SCHEDULER, worker=True
    ),
    Title(
        pattern=re.compile(r"^ray::(IDLE|DashboardAgent|RuntimeEnvAgent)"), framework="ray", role=Role.OTHER
    ),
    Title(pattern=re.compile(r"^ray::"), framework="ray", role=Role.RANK),
    Title(pattern=re.compile(_PREFIX + "Worker" + _COORDS), framework="vllm", role=Role.RANK, worker=True),
    Title(
        pattern=re.compile(_PREFIX + r"EngineCore" + _COORDS), framework="vllm", role=Role.ENGINE, worker=True
    ),
    Title(
        pattern=re.compile(_PREFIX + r"(APIServer(_\d+)?|DPCoordinator)$"),
        framework="vllm",
        role=Role.OTHER,
        worker=True,
    ),
)
COORDINATE = re.compile(r"_(?P<name>[A-Z_]*?[A-Z])(?P<value>\d+)")

# Programs that start a job's processes, by the base name of an argument, or by the module after -m.
LAUNCHER_PROGRAMS: dict[str, str] = {
    "torchrun": "torch",
    "accelerate": "torch",
    "accelerate-launch": "torch",
    "deepspeed": "deepspeed",
    "mpirun": "mpi",
    "mpiexec": "mpi",
    "mpiexec.hydra": "mpi",
    "orterun": "mpi",
    "prterun": "mpi",
    "prun": "mpi",
    "orted": "mpi",
    "prted": "mpi",
    "hydra_pmi_proxy": "mpi",
    "hydra_bstrap_proxy": "mpi",
    "horovodrun": "horovod",
    "slurmstepd": "slurm",
    "vllm": "vllm",
    "trtllm-llmapi-launch": "tensorrt_llm",
    "trtllm-serve": "tensorrt_llm",
    "raylet": "ray",
}
LAUNCHER_MODULES: dict[str, str] = {
    "torch.distributed.run": "torch",
    "torch.distributed.launch": "torch",
    "torch.distributed.launcher": "torch",
    "accelerate.commands.launch": "torch",
    "deepspeed.launcher.launch": "deepspeed",
    "deepspeed.launcher.runner": "deepspeed",
    "sglang.launch_server": "sglang",
    "vllm.entrypoints.openai.api_server": "vllm",
    "mpi4py.futures": "mpi",
}
# These serve all jobs of a node: a job is told apart by its own variable, not by the parent.
SHARED_LAUNCHERS = frozenset({"raylet", "slurmstepd"})

RAYLET = "raylet"
# Of Ray's own programs, which know all jobs of a cluster.
_RAY_SERVICE = re.compile(r"/ray/(core/src/ray|dashboard|autoscaler|_private(?!/workers))/")

# Never gone through on the way up: what starts people's work in general has nothing to do with this job.
BOUNDARY_PROGRAMS = frozenset(
    {
        "sh",
        "bash",
        "dash",
        "zsh",
        "fish",
        "ksh",
        "mksh",
        "tcsh",
        "csh",
        "ash",
        "busybox",
        "nu",
        "xonsh",
        "pwsh",
    }
    | {
        "tmux",
        "tmux: server",
        "screen",
        "zellij",
        "dtach",
        "abduco",
        "script",
        "expect",
        "ttyd",
        "mosh-server",
    }
    | {
        "sshd",
        "sshd-session",
        "sshd-auth",
        "dropbear",
        "login",
        "agetty",
        "getty",
        "su",
        "sudo",
        "doas",
        "runuser",
    }
    | {"systemd", "init", "upstart", "runit", "s6-svscan", "supervisord", "tini", "dumb-init", "catatonit"}
    | {
        "docker-init",
        "containerd-shim",
        "containerd-shim-runc-v2",
        "conmon",
        "runc",
        "crun",
        "dockerd",
        "podman",
    }
    | {"kubelet", "containerd", "cron", "crond", "atd", "anacron", "slurmd", "pbs_mom", "sge_shepherd"}
    | {
        "vim",
        "nvim",
        "emacs",
        "nano",
        "code",
        "code-server",
        "node",
        "java",
        "gnome-shell",
        "gnome-terminal-",
    }
    | {
        "make",
        "gmake",
        "ninja",
        "cmake",
        "ctest",
        "bazel",
        "buildkite-agent",
        "gitlab-runner",
        "Runner.Worker",
    }
    | {"gdb", "lldb", "strace", "ltrace", "perf", "valgrind", "timeout", "time", "watch", "xargs", "parallel"}
    | {
        "nohup",
        "setsid",
        "env",
        "unshare",
        "nsenter",
        "chroot",
        "bwrap",
        "firejail",
        "xvfb-run",
        "ssh",
        "git",
    }
    | {
        "pytest",
        "py.test",
        "tox",
        "nox",
        "nosetests",
        "pre-commit",
        "jupyter",
        "jupyter-lab",
        "jupyter-notebook",
    }
    | {"hangtrace"}
)
BOUNDARY_MODULES = frozenset(
    {"pytest", "unittest", "tox", "nox", "xdist", "ipykernel", "ipykernel_launcher", "jupyter", "jupyterlab"}
    | {"notebook", "IPython", "pyhangtrace", "pdb", "coverage"}
)

# Command lines of multiprocessing's own helpers.
SPAWN_CHILD = "--multiprocessing-fork"
TRACKERS = ("multiprocessing.resource_tracker", "multiprocessing.semaphore_tracker")
FORKSERVER = "multiprocessing.forkserver"
LOCAL_RANK_ARGUMENT = re.compile(r"^--local[_-]rank(=|$)")

# Frames and thread names that give a worker of torch's DataLoader away.
DATA_WORKER_FRAME = "_worker_loop"
DATA_WORKER_COMM = "pt_data_worker"

_PYTHON = re.compile(r"^(python|pypy)[\d.]*(t|d|-dbg)?$")


def base_name(path: str) -> str:
    """The last part of a path; a login shell's leading dash is dropped."""
    return path.rpartition("/")[2].removeprefix("-").removesuffix(" (deleted)")


def programs(comm: str, arguments: Sequence[str]) -> tuple[str, ...]:
    """Names this process may go by: its first argument, for an interpreter also the script."""
    names = [comm]
    if arguments:
        first = base_name(arguments[0].split(" ")[0].rstrip(":"))
        names.append(first)
        if _PYTHON.match(first):
            script = script_of(arguments)
            if script is not None:
                names.append(base_name(script).removesuffix(".py"))
    return tuple(names)


def is_python(arguments: Sequence[str]) -> bool:
    """Started as a Python interpreter."""
    return bool(arguments) and _PYTHON.match(base_name(arguments[0])) is not None


def script_of(arguments: Sequence[str]) -> str | None:
    """The script of a Python command line; `None` for -c and -m."""
    skip = False
    for argument in arguments[1:]:
        if skip:
            skip = False
        elif argument in ("-X", "-W", "--check-hash-based-pycs"):
            skip = True
        elif argument.startswith(("-c", "-m")):
            return None
        elif not argument.startswith("-"):
            return argument
    return None


def module_of(arguments: Sequence[str]) -> str | None:
    """The module of `python -m module`."""
    if not is_python(arguments):
        return None
    for index, argument in enumerate(arguments[1:], start=1):
        if argument == "-m":
            return arguments[index + 1] if index + 1 < len(arguments) else None
        if argument.startswith("-m") and len(argument) > 2:
            return argument[2:]
        if not argument.startswith("-") or argument.startswith("-c"):
            return None
    return None


def launcher(comm: str, arguments: Sequence[str]) -> str | None:
    """The framework whose launcher this is, `None` if it is none we know."""
    for name in programs(comm, arguments):
        if name in LAUNCHER_PROGRAMS:
            return LAUNCHER_PROGRAMS[name]
    module = module_of(arguments)
    while module:
        if module in LAUNCHER_MODULES:
            return LAUNCHER_MODULES[module]
        module = module.rpartition(".")[0]
    return None


# Shells, and programs that run another one with something set for it: they have no work of their own.
_RUNNERS = frozenset(
    [
        "sh",
        "bash",
        "dash",
        "zsh",
        "ksh",
        "ash",
        "fish",
        "timeout",
        "time",
        "nohup",
        "setsid",
        "env",
        "nice",
        "ionice",
        "numactl",
        "taskset",
        "chrt",
        "prlimit",
        "stdbuf",
        "setpriv",
        "sudo",
        "runuser",
        "su",
        "chroot",
        "unshare",
        "nsenter",
        "bwrap",
        "firejail",
        "tini",
        "dumb-init",
        "catatonit",
        "strace",
        "ltrace",
        "gdb",
        "perf",
        "valgrind",
        "nsys",
        "ncu",
    ]
)


def runs_another(comm: str, arguments: Sequence[str]) -> bool:
    """A shell or a wrapper: what it was started with is meant for the program that it runs."""
    return not _RUNNERS.isdisjoint(programs(comm, arguments))


def boundary(comm: str, arguments: Sequence[str]) -> bool:
    """Whether a job never reaches up to, or through, this process."""
    if launcher(comm, arguments) is not None:
        return False
    if any(name in BOUNDARY_PROGRAMS for name in programs(comm, arguments)):
        return True
    module = module_of(arguments)
    return module is not None and module.partition(".")[0] in BOUNDARY_MODULES


def one_command(arguments: Sequence[str]) -> bool:
    """A shell that was started for one command, by a program rather than by a person."""
    return len(arguments) > 2 and base_name(arguments[0]) in ("sh", "bash", "dash") and arguments[1] == "-c"


def title(arguments: Sequence[str]) -> tuple[Title, re.Match[str]] | None:
    """The framework title that a command line is, if any."""
    text = " ".join(arguments).strip()
    for known in TITLES:
        match = known.pattern.match(text)
        if match is not None:
            return known, match
    return None


# Titles as `comm` has them, cut at 15 characters: of processes whose command line cannot be read, as of a zombie's.
_CUT = 15
_IN_FULL = (
    "VLLM::Worker",
    "VLLM::EngineCore",
    "sglang::scheduler",
    "sglang::detokenizer",
    "sgl_diffusion::scheduler",
)


def cut_title(comm: str) -> Title | None:
    """The framework title that a process name begins to spell, if any; what follows it is not known."""
    for full in _IN_FULL:
        if comm.startswith(full[:_CUT]):
            return next(known for known in TITLES if known.pattern.match(full))
    return None


def coordinates(text: str) -> tuple[tuple[str, int], ...]:
    """`_DP0_TP3` as (("dp", 0), ("tp", 3))."""
    return tuple((part["name"].lower(), int(part["value"])) for part in COORDINATE.finditer(text))


def compiler(comm: str, arguments: Sequence[str]) -> bool:
    """Whether this is a program that a build runs."""
    names = (comm, base_name(arguments[0]) if arguments else "")
    return any(is_compiler(name) for name in names)


def multiprocessing_helper(arguments: Sequence[str]) -> bool:
    """The resource tracker or the fork server: bookkeeping, no worker."""
    text = " ".join(arguments)
    return any(name in text for name in (*TRACKERS, FORKSERVER))


def spawned(arguments: Sequence[str]) -> bool:
    """A child of multiprocessing's spawn method."""
    return SPAWN_CHILD in arguments


def serves_ray(arguments: Sequence[str]) -> bool:
    """Whether a command line runs one of Ray's own services."""
    return any(_RAY_SERVICE.search(argument) is not None for argument in arguments[:4])
