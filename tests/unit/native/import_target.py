"""Two threads import the same module, whose body does not end."""

import json
import pathlib
import sys
import tempfile
import threading

with tempfile.TemporaryDirectory() as folder:
    pathlib.Path(folder, "slow_module.py").write_text(
        "import builtins\nbuiltins.started.set()\nbuiltins.finish.wait()\n"
    )
    sys.path.insert(0, folder)
    import builtins

    builtins.started, builtins.finish = threading.Event(), threading.Event()
    first = threading.Thread(target=__import__, args=("slow_module",), name="first")
    first.start()
    builtins.started.wait()
    second = threading.Thread(target=__import__, args=("slow_module",), name="second")
    second.start()
    print(json.dumps({"first": first.native_id, "second": second.native_id}), flush=True)
    sys.stdin.read()
    builtins.finish.set()
    first.join()
    second.join()
