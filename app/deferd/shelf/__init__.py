"""The shelf: jobs that are due far in the future, in files beside the embedded store instead of in its memory."""
