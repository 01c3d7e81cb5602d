"""The console: pages for people, at `/` and `/console/...`, as a client of the API in the same process."""
