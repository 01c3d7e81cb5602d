"""The responses of the HTTP API, one struct each: the service writes, the client reads and OpenAPI shows them."""
