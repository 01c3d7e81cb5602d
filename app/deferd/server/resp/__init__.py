"""Connections that speak the Redis protocol (RESP2 and RESP3). `deferd.api.resp` has the commands."""
