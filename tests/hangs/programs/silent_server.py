"""A server that accepts and never answers. usage: silent_server.py unix|tcp PATH (tcp: the port goes to PATH)"""

import socket
import sys

import announce

family, path = sys.argv[1:]
if family == "unix":
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
else:
    listener = socket.create_server(("127.0.0.1", 0))
    with open(path, "w") as file:
        file.write(str(listener.getsockname()[1]))
announce.member("server")
connections = []
while True:
    connections.append(listener.accept()[0])
