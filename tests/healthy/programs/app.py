"""An application for a WSGI server and one for an ASGI server."""

import hashlib


def wsgi(environ, start_response):
    body = hashlib.sha256(environ["PATH_INFO"].encode() * 1000).hexdigest().encode()
    start_response("200 OK", [("Content-Length", str(len(body)))])
    return [body]


async def asgi(scope, receive, send):
    if scope["type"] == "lifespan":
        while (await receive())["type"] != "lifespan.shutdown":
            await send({"type": "lifespan.startup.complete"})
        await send({"type": "lifespan.shutdown.complete"})
        return
    body = hashlib.sha256(scope["path"].encode() * 1000).hexdigest().encode()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})
