"""Small programs that really hang, for people who want to see what ``hangtrace attach`` says.

They need neither torch nor a GPU. ``kinds()`` lists them and ``start()`` runs one:

    with demo.start("file-lock") as running:
        ...  # attach to running.attach_pid

Everything a demo starts is gone when the block is left. When the caller is killed, its processes are gone
too; a sparse file without blocks on the disk may stay in TMPDIR (by default /var/tmp).
"""

from pyhangtrace.demo.runner import DemoFailed, RunningDemo, start
from pyhangtrace.demo.scenes import DEFAULT_KIND, DemoKind, kinds

__all__ = ["DEFAULT_KIND", "DemoFailed", "DemoKind", "RunningDemo", "kinds", "start"]
