"""HTTP/1.1: uvicorn's protocol with limits, and a fast path for the common requests."""
