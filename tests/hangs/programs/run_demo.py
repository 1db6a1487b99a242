"""A demo as users start it. usage: run_demo.py NAME"""

import json
import os
import signal
import sys

from pyhangtrace import demo

with demo.start(sys.argv[1]) as running:
    lines = [
        json.dumps({"role": one.role.replace(" ", "_"), "pid": one.pid, "tid": one.tid})
        for one in running.members.values()
    ]
    with open(os.environ["HANGS_ANNOUNCE"], "w") as pipe:
        pipe.write("\n".join(lines) + "\n")
    signal.pause()
