"""Wait until somebody accepts connections. usage: up.py PORT|PATH"""

import os
import socket
import sys
import time

import announce

where = sys.argv[1]
deadline = time.monotonic() + 60
while True:
    try:
        with socket.socket(socket.AF_INET if where.isdigit() else socket.AF_UNIX) as probe:
            probe.connect(("127.0.0.1", int(where)) if where.isdigit() else where)
        break
    except (FileNotFoundError, ConnectionRefusedError):
        if time.monotonic() > deadline:
            sys.exit(f"nobody listens at {where} (user {os.getuid()})")
        time.sleep(0.05)
announce.member("up")
