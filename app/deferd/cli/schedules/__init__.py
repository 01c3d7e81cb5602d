"""Commands for schedules and calendars."""
