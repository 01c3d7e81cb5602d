"""Shared by all commands: connections, options, values, errors, output."""
