"""Completion of topic names, asked from the service."""

from __future__ import annotations

import contextlib
import time
from typing import Any, Final

import click
from click.shell_completion import CompletionItem

from deferd.cli.framework.connection import SETTINGS, Connection

TIME_LIMIT_S: Final = 1.0


def complete_topic(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The topics that start with the last of these comma-separated names; none if the service cannot be reached."""
    before, comma, start = incomplete.rpartition(",")
    names: list[str] = []
    with contextlib.suppress(Exception):  # a shell shows no errors of a completion
        settings: dict[str, Any] = {name: ctx.params.get(name) for name in SETTINGS}
        settings |= {"timeout": TIME_LIMIT_S, "retry_for": 0.0}
        names = _topics(Connection(**settings), start)
    return [CompletionItem(f"{before}{comma}{name}") for name in names]


def _topics(connection: Connection, start: str) -> list[str]:
    names: list[str] = []
    deadline_s = time.monotonic() + TIME_LIMIT_S
    with connection.open() as client:
        for page in client.topic_pages():
            names += [view.topic for view in page.topics if view.topic.startswith(start)]
            if time.monotonic() > deadline_s:
                break
    return names
