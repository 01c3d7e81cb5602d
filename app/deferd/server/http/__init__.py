"""HTTP/1.1: one connection within limits, ASGI, and a fast path for the common requests."""
