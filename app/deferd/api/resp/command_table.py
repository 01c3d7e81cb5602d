"""All commands, by name. A module declares its commands when it is imported; COMMAND lists them in this order."""

from __future__ import annotations

# isort would change the order; the import is for its effect
from deferd.api.resp import set_commands, topic_commands, connection_commands, job_commands  # isort: skip # noqa: F401
from deferd.api.resp.command import COMMANDS, Command

__all__ = ["COMMANDS", "Command"]
