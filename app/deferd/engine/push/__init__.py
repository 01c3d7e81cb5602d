"""Pushed topics in the store: how their jobs are pushed, what is known of their targets, and what may be sent now."""
