"""Commands for topics, for all jobs of one, for pushing its jobs to a URL, and for schedules and calendars."""
