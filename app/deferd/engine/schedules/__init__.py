"""Recurring jobs: schedules in the store, each with its next run as a delayed job."""
