"""What happens to jobs, as topics keep it when their settings say so: events, and the streams of them."""
