"""The serving process: start and stop, settings of the process, HTTP."""
