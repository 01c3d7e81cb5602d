"""The contract: the words, bounds and errors of the HTTP API, shared by the service and its clients."""
