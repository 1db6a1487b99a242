"""What a program does besides: all of it healthy, none of it ever to be named."""

from __future__ import annotations

#: Lines of code by kind. Names in braces are replaced by fresh ones.
KINDS: dict[str, tuple[str, ...]] = {
    "pool": (
        "{pool} = ThreadPoolExecutor(3, thread_name_prefix={text})",
        "KEEP.append({pool})",
        "{meeting} = threading.Barrier(3)",
        "list({pool}.map(lambda _: {meeting}.wait(), range(3)))",
    ),
    "timer": (
        "{timer} = threading.Timer({long}, print)",
        "{timer}.daemon = True",
        "{timer}.start()",
    ),
    "server": (
        "{server} = socket.create_server(('127.0.0.1', 0))",
        "KEEP.append({server})",
        "threading.Thread(target={server}.accept, name={text}, daemon=True).start()",
    ),
    "heartbeat": (
        "def {function}():",
        "    while True:",
        "        time.sleep(0.2)",
        "threading.Thread(target={function}, name={text}, daemon=True).start()",
    ),
    "talk": (
        "{one}, {two} = socket.socketpair()",
        "KEEP.extend(({one}, {two}))",
        "def {asks}():",
        "    while True:",
        "        {one}.sendall(b'ping')",
        "        {one}.recv(4)",
        "        time.sleep(0.05)",
        "def {answers}():",
        "    while True:",
        "        {two}.sendall({two}.recv(4))",
        "for {function} in ({asks}, {answers}):",
        "    threading.Thread(target={function}, daemon=True).start()",
    ),
    "queue": (
        "{queue} = queue.Queue()",
        "KEEP.append({queue})",
        "def {function}():",
        "    while {queue}.get() is not None:",
        "        pass",
        "threading.Thread(target={function}, name={text}, daemon=True).start()",
    ),
    "counter": (
        "{lock} = threading.Lock()",
        "{count} = [0]",
        "def {function}():",
        "    while True:",
        "        with {lock}:",
        "            {count}[0] += 1",
        "        time.sleep(0.02)",
        "for _ in range(2):",
        "    threading.Thread(target={function}, daemon=True).start()",
    ),
    "asyncio": (
        "{loop} = asyncio.new_event_loop()",
        "KEEP.append({loop})",
        "threading.Thread(target={loop}.run_forever, name={text}, daemon=True).start()",
    ),
    "child": (
        "KEEP.append(subprocess.Popen([sys.executable, '-c', 'import sys; sys.stdin.read()'],"
        " stdin=subprocess.PIPE))",
    ),
    "patrol": (
        "{stop} = threading.Event()",
        "KEEP.append({stop})",
        "def {function}():",
        "    while not {stop}.wait(0.5):",
        "        pass",
        "threading.Thread(target={function}, name={text}, daemon=True).start()",
    ),
}
