"""HTTP/1.1 on one connection: uvicorn's protocol within limits, with a fast path for the usual requests."""
