"""Commands for topics, for all jobs of one, and for pushing its jobs to a URL."""
