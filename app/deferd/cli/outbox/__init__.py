"""Commands for the outbox in PostgreSQL."""
