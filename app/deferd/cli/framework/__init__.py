"""What the commands share: connections, options, values, errors, output."""
