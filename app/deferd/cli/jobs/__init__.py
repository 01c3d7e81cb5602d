"""Commands that put, change, cancel, take and finish jobs."""
