"""Who may do what: API keys, permissions, usage limits, and the audit log."""
