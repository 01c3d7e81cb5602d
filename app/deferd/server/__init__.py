"""The process of `deferd serve`: start and stop, supervision, TLS, logs, HTTP."""
