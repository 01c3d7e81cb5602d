"""Commands that run a service or work on its store, keys and settings: no other commands import the service."""
