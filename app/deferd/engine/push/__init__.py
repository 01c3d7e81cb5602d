"""Pushed topics in the store: how their jobs are pushed, the state of their targets, and what may be sent now."""
