"""Named actions on many jobs that run in the background, in any process of the service."""
