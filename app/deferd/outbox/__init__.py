"""The outbox: puts and cancels that are part of a transaction of your own PostgreSQL database."""
