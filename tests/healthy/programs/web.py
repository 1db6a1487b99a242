"""Web servers of the standard library. usage: web.py threads|asyncio PORT"""

import asyncio
import hashlib
import http.server
import sys

import announce

PORT = int(sys.argv[2])


def page(path):
    return (hashlib.sha256(path).hexdigest() + "\n").encode() * 20


class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = page(self.path.encode())
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 64


def threads():
    with Server(("127.0.0.1", PORT), Answer) as server:
        announce.member("server")
        server.serve_forever()


async def answer(reader, writer):
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        body = await asyncio.get_running_loop().run_in_executor(None, page, head)
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass  # the client went away
    finally:
        writer.close()


async def serve():
    server = await asyncio.start_server(answer, "127.0.0.1", PORT)
    announce.member("server")
    await server.serve_forever()


threads() if sys.argv[1] == "threads" else asyncio.run(serve())
