"""The healthy programs, by what they are: servers, training, pools, databases, commands, locks."""

from __future__ import annotations

from tests.hangs.facts import Program, Waits
from tests.healthy.facts import WELL, Well

PYTHON, HERE = "{python}", "{here}"
CORES = {"OMP_NUM_THREADS": "1"}
#: Where somebody computes while others wait for it, or everybody waits for the slowest, and that is how it should be.
MAY_BE_BUSY = WELL | {"busy", "slow"}


def start(*argv: str, says: tuple[str, ...] = (), **options: object) -> Program:
    return Program(argv=argv, members=dict.fromkeys(says, Waits.ANY), **options)  # type: ignore[arg-type]


def script(file: str, *argv: str, says: tuple[str, ...] = (), **options: object) -> Program:
    return start(PYTHON, f"{HERE}/{file}", *argv, says=says, **options)


def shell(file: str, what: str, *argv: str, says: tuple[str, ...] = ()) -> Program:
    return start("sh", f"{HERE}/{file}", what, "{scratch}", HERE, *argv, says=says)


def up(where: str = "{port}") -> Program:
    return script("up.py", where, says=("up",))


LOAD = script("load.py", "{port}", "6", says=("load",))
WRK = start(
    "sh",
    "-c",
    '. {here}/say.sh; say load; exec wrk -t 2 -c 16 -d 3600 "http://127.0.0.1:{port}/"',
    says=("load",),
)


def web(
    name: str,
    summary: str,
    *server: Program,
    commands: tuple[str, ...] = (),
    modules: tuple[str, ...] = (),
    slow: bool,
) -> tuple[Well, ...]:
    """A server without load, under that of our own clients, and under that of wrk."""

    def scene(kind: str, load: tuple[Program, ...], *more: str, slow: bool) -> Well:
        return Well(
            name=f"{name}-{kind}",
            summary=f"{summary}, {kind}",
            programs=(*server, *load),
            states=MAY_BE_BUSY if load else WELL,
            commands=(*commands, *more),
            modules=modules,
            slow=slow,
        )

    return (
        scene("idle", (), slow=True),
        scene("loaded", (LOAD,), slow=slow),
        scene("wrk", (WRK,), "wrk", slow=True),
    )


SERVERS = (
    *web(
        "http-threads",
        "ThreadingHTTPServer",
        script("web.py", "threads", "{port}", says=("server",)),
        slow=False,
    ),
    *web(
        "http-asyncio",
        "an asyncio server",
        script("web.py", "asyncio", "{port}", says=("server",)),
        slow=True,
    ),
    *web(
        "gunicorn",
        "gunicorn with two workers of two threads",
        start(
            PYTHON,
            "-m",
            "gunicorn",
            "--chdir",
            HERE,
            "-w",
            "2",
            "--threads",
            "2",
            "-b",
            "127.0.0.1:{port}",
            "app:wsgi",
        ),
        up(),
        modules=("gunicorn",),
        slow=True,
    ),
    *web(
        "uvicorn",
        "uvicorn with two workers",
        start(
            PYTHON,
            "-m",
            "uvicorn",
            "--app-dir",
            HERE,
            "--workers",
            "2",
            "--port",
            "{port}",
            "--log-level",
            "error",
            "app:asgi",
        ),
        up(),
        modules=("uvicorn",),
        slow=True,
    ),
    *web(
        "nginx",
        "nginx with two workers",
        shell("databases.sh", "nginx", "{port}"),
        up(),
        commands=("nginx",),
        slow=True,
    ),
)


def training(
    name: str, summary: str, kind: str, *, slow: bool, launcher: bool = False, ranks: int = 2
) -> Well:
    says = tuple(f"rank{rank}" for rank in range(ranks))
    argv = (f"{HERE}/ddp.py", kind, "{scratch}")
    if launcher:
        job = start(
            PYTHON,
            "-m",
            "torch.distributed.run",
            f"--nproc-per-node={ranks}",
            "--master-port={port}",
            *argv,
            says=says,
        )
    else:
        job = start(PYTHON, *argv, says=says, ranks=tuple(range(ranks)))
    return Well(
        name=name, summary=summary, programs=(job,), states=MAY_BE_BUSY, modules=("torch",), slow=slow
    )


TRAINING = (
    training("ddp", "data parallel training with data loaders", "even", slow=True),
    training(
        "ddp-torchrun", "the same under torchrun, four ranks", "even", slow=True, launcher=True, ranks=4
    ),
    training(
        "ddp-uneven", "rank 1 is late by 20 ms, rank 0 writes checkpoints", "uneven", slow=True, launcher=True
    ),
    training("ddp-pause", "rank 0 evaluates for half a second now and then", "pause", slow=True),
)


def pool(kind: str, summary: str, *, modules: tuple[str, ...] = (), slow: bool) -> tuple[Well, ...]:
    """A pool at work, and one that waits for orders from standard input."""
    return (
        Well(
            name=f"{kind.replace('_', '-')}-at-work",
            summary=f"{summary}, at work",
            programs=(script("pools.py", kind, says=("main",)),),
            states=MAY_BE_BUSY,
            modules=modules,
            slow=slow,
        ),
        Well(
            name=f"{kind.replace('_', '-')}-idle",
            summary=f"{summary}, idle",
            programs=(script("pools.py", kind, "idle", says=("main",), stdin_open=True),),
            modules=modules,
            slow=True,
        ),
    )


POOLS = (
    *pool("pool", "multiprocessing.Pool", slow=False),
    *pool("executor", "ProcessPoolExecutor", slow=True),
    *pool("joblib", "joblib", modules=("joblib",), slow=True),
    *pool("threads", "ThreadPoolExecutor", slow=True),
    *pool("queue", "threads between two bounded queues", slow=False),
    *pool("process_queue", "processes between two bounded queues", slow=True),
    *pool("asyncio", "asyncio with an executor", slow=True),
)

POSTGRES = (
    shell("databases.sh", "postgres", "{port}", "{postgres}"),
    up("{scratch}/pg/.s.PGSQL.{port}"),
)
REDIS = (
    start("redis-server", "--port", "{port}", "--bind", "127.0.0.1", "--save", "", "--dir", "{scratch}"),
    up(),
)

DATABASES = (
    Well(
        name="postgres-idle",
        summary="PostgreSQL, nobody connected",
        programs=POSTGRES,
        postgres=True,
        slow=True,
    ),
    Well(
        name="postgres-pgbench",
        summary="PostgreSQL under pgbench, six clients on one branch",
        programs=(*POSTGRES, shell("databases.sh", "pgbench", "{port}", "{postgres}", says=("load",))),
        postgres=True,
        slow=True,
    ),
    Well(
        name="redis-idle",
        summary="Redis, nobody connected",
        programs=REDIS,
        commands=("redis-server",),
        slow=True,
    ),
    Well(
        name="redis-benchmark",
        summary="Redis under its benchmark",
        programs=(*REDIS, shell("databases.sh", "redis_load", "{port}", says=("load",))),
        commands=("redis-server", "redis-benchmark"),
        slow=True,
    ),
    Well(
        name="sqlite-writers",
        summary="three processes write to one SQLite file",
        programs=(script("writers.py", "{scratch}/notes", "busy", says=("main",)),),
        states=MAY_BE_BUSY,
        slow=False,
    ),
    Well(
        name="sqlite-idle",
        summary="the same, waiting for orders",
        programs=(script("writers.py", "{scratch}/notes", "idle", says=("main",), stdin_open=True),),
        slow=True,
    ),
)


def command(name: str, what: str, summary: str, *, needs: tuple[str, ...] = (), slow: bool = True) -> Well:
    return Well(
        name=name,
        summary=summary,
        programs=(shell("scripts.sh", what, says=("main",)),),
        states=MAY_BE_BUSY,
        commands=needs,
        slow=slow,
    )


COMMANDS = (
    command("shell-naps", "naps", "a script that sleeps 0.3 s between its commands"),
    command("shell-long-naps", "long_nap", "a script that sleeps 20 s between its commands"),
    command("tar-pipe", "tar", "tar into gzip into tar, again and again", needs=("tar", "gzip")),
    command("rsync", "rsync", "copies of a folder", needs=("rsync",)),
    command("make", "make", "a build by make -j3", needs=("make", "cc", "seq")),
    Well(
        name="throttled-pipe",
        summary="a pipeline whose last command takes 64 KiB every 50 ms",
        programs=(start("sh", "-c", "yes | gzip -1 | cat | {python} {here}/throttle.py", says=("end",)),),
        states=MAY_BE_BUSY,
        commands=("gzip", "yes"),
        slow=True,
    ),
)


def contended(kind: str, *, slow: bool = True) -> Well:
    return Well(
        name=f"contended-{kind}",
        summary=f"four threads that want the same {kind} all the time",
        programs=(start(f"{HERE}/contend.c", kind, says=("main",)),),
        states=MAY_BE_BUSY,
        commands=("cc",),
        slow=slow,
    )


LOCKS = (
    contended("mutex", slow=False),
    contended("rwlock"),
    contended("condition"),
    contended("semaphore"),
    contended("barrier"),
    Well(
        name="openmp",
        summary="parallel loops of OpenMP",
        programs=(
            start(
                "sh",
                "-c",
                "cc -O1 -g -D_GNU_SOURCE -fopenmp -I {programs} -o {scratch}/loops {here}/loops.c "
                "&& exec {scratch}/loops",
                says=("main",),
            ),
        ),
        states=MAY_BE_BUSY,
        commands=("cc",),
        slow=True,
    ),
)

SCENES = (*SERVERS, *TRAINING, *POOLS, *DATABASES, *COMMANDS, *LOCKS)
