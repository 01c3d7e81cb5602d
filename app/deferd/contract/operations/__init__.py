"""The operations of the HTTP API, one module a resource, for the service, the client and the OpenAPI document."""
