"""Commands that show, check and measure a running service."""
