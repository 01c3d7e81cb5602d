"""Events: what happens to jobs, kept by topics whose settings ask for it, and streams of events."""
