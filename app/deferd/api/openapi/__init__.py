"""The OpenAPI document. `python -m deferd.api.openapi` writes it."""
