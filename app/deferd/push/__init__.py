"""Pushing: sends the jobs of pushed topics to their targets as signed HTTP requests, see docs/push.md."""
