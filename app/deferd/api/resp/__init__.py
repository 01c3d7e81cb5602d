"""The commands of the Redis protocol: what each means in terms of the API, and what it replies.

Commands, except for those about the connection, are requests of an operation of the API: with its validation, its
admission, its limits, its metrics and its errors. `deferd.server.resp_connection` reads them from connections.
"""
