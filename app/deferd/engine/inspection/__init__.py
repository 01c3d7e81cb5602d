"""What operators look at: why a job does not run, what will come due, why jobs are dead, who consumes."""
