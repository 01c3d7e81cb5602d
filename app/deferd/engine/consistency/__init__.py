"""The consistency check of the store, and its repair."""
