"""HTTP/1.1 on one connection: uvicorn's protocol within limits, with a short way for the requests that make the load.

`connections`   the limits of all connections of a process, which of them count, and which are overdue
`tls`           a connection before and during its TLS handshake
`limited`       one connection within them: what comes slowly, too large, too far ahead or not at all
`request_head`  what the head of a request must keep to
`short_way`     on top of that, the way past ASGI for requests that come plainly
`plain_call`    what goes this way

`limited` and `short_way` build on the inside of uvicorn's HttpToolsProtocol, whose versions pyproject.toml bounds for
that reason.
"""
