"""The consistency check: whether what the store holds agrees with itself, and its repair."""
