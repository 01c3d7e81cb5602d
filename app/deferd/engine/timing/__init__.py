"""Wall-clock time: zones, opening hours and recurrence. Pure functions, without the store."""
