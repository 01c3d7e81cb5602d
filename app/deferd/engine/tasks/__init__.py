"""Background actions on many jobs, which any process of the service may run."""
