"""The contract: models, limits and errors of the HTTP API, shared by the service and its clients."""
