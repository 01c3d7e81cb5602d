"""The commands that work on stores and data folders, and not on a running service: `backup`, `restore` and `copy`."""
