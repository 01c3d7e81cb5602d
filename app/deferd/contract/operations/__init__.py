"""The operations of the HTTP API, one row each, for the service, the client and the OpenAPI document."""
