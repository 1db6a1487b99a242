"""Clients of a web server, each as fast as it is answered. usage: load.py PORT CLIENTS"""

import http.client
import sys
import threading

import announce

PORT, CLIENTS = int(sys.argv[1]), int(sys.argv[2])
begun = threading.Barrier(CLIENTS + 1)


def ask(number):
    for turn in range(10**9):
        connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=60)
        connection.request("GET", f"/{number}/{turn}")
        connection.getresponse().read()
        connection.close()
        if turn == 0:
            begun.wait()


threads = [threading.Thread(target=ask, args=(number,), daemon=True) for number in range(CLIENTS)]
for thread in threads:
    thread.start()
begun.wait(60)
announce.member("load")
for thread in threads:
    thread.join()
