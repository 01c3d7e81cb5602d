"""What operators look at: why a job does not run, what comes due, why jobs are dead, and who consumes."""
