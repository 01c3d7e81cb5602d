"""The commands for topics: `topics`, `topic`, `pause`, `resume`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from deferd.cli.framework import exit_codes, output, values
from deferd.cli.framework.exit_codes import UsageError
from deferd.cli.framework.options import STATES, client_command, topic_argument, topic_options
from deferd.cli.framework.output import Cells, Column
from deferd.contract.fields import POLICY, TOPIC, Field

if TYPE_CHECKING:
    from deferd.client import Client, TopicPage, TopicView


def _due_in_s(view: TopicView) -> float | None:
    """Seconds until the next delayed job is due, by the clock of this host; None if none is delayed."""
    due_at = view.next_due_at
    return None if due_at is None else max((due_at - datetime.now(UTC)).total_seconds(), 0.0)


def _name(view: TopicView) -> str:
    return view.topic + (" (paused)" if view.paused else "")


def _counts(number: Callable[[float], str]) -> Cells[TopicView]:
    """The columns of the states."""

    def text(state: str) -> Callable[[TopicView], str]:
        return lambda view: number(view.counts[state])

    return {Column(state.upper(), right=True): text(state) for state in STATES}


_CELLS: Cells[TopicView] = {
    Column("TOPIC"): _name,
    **_counts(output.number),
    Column("OLDEST READY", right=True): lambda view: output.span(view.oldest_ready_age),
    Column("NEXT DUE", right=True): lambda view: output.from_now(view.next_due_at),
}
_NARROW_CELLS: Cells[TopicView] = {
    Column("TOPIC"): _name,
    **_counts(output.short_number),
    Column("OLDEST", right=True): lambda view: output.short_span(view.oldest_ready_age),
    Column("DUE", right=True): lambda view: output.short_span(_due_in_s(view)),
}
_SERVICE_DEFAULT = "the service's default"
_WITHOUT = {
    "window": "always open",
    "spread": "none",
    "max_jobs": "no limit",
    "durability": "what the store gives by itself",
    "events": "none kept",
}
"""The text for settings that neither the topic nor the service's defaults have."""


class UnavailableTopics:
    """What is missing in the pages of a list: `shards`, and the known names of their `topics`."""

    def __init__(self) -> None:
        self.topics: list[str] = []
        self.shards: list[int] = []

    def note(self, page: TopicPage) -> None:
        """Add a page."""
        self.topics = sorted({*self.topics, *page.unavailable})
        self.shards = sorted({*self.shards, *page.unreadable_shards})

    def sentences(self) -> Iterator[str]:
        """Messages for people; none if the list is complete."""
        if self.shards:
            numbers = ", ".join(map(str, self.shards))
            yield f"the list is incomplete: the store cannot be reached for shards {numbers}"
        if self.topics:
            yield f"unavailable: {', '.join(self.topics)}"


@client_command("deferd topics", "deferd topics --json | jq -r 'select(.counts.dead > 0).topic'")
def topics(client: Client, as_json: bool) -> int:
    """List all topics with their counts. When a part of the store cannot be reached, list the others and fail."""
    views: list[TopicView] = []
    unavailable = UnavailableTopics()
    for page in client.topic_pages():
        unavailable.note(page)
        if as_json:
            for view in page.topics:
                output.json_line(view.fields)
        else:
            views += page.topics
    if not as_json:
        wide = [[text(view) for text in _CELLS.values()] for view in views]
        cells = _CELLS if output.fits([*_CELLS], wide) else _NARROW_CELLS
        output.json_or_table(views, cells, "there is no topic yet", as_json=False)
    for sentence in unavailable.sentences():
        output.complain(sentence)
    return exit_codes.FAILED if unavailable.shards else exit_codes.DONE


@client_command(
    "deferd topic orders.close",
    "deferd topic orders.close --ttr 2m --max-attempts 5 --backoff fixed:30",
    """deferd topic orders.close --set '{"ttr": 120, "max_jobs": 100000}'""",
)
@topic_argument()
@topic_options
@click.option(
    "--set",
    "settings",
    type=values.json_object,
    metavar="JSON",
    help="replace all settings; '{}': back to the defaults",
)
def topic(topic: str, settings: dict[str, Any] | None, client: Client, as_json: bool, fields: dict[str, Any]) -> None:
    """Show a topic. With --ttr and the like, change these of its settings and keep the others; they apply to jobs that
    are put from now on.
    """
    if settings is not None and fields:
        raise UsageError("--set replaces all settings: it cannot be combined with flags of single ones, such as --ttr")
    if fields.get("durability") == "none":
        fields["durability"] = None
    if settings is not None:
        view = client.set_topic(topic, settings)
    elif fields:
        view = client.set_topic(topic, {**_current_settings(client, topic), **fields})
    else:
        view = client.topic(topic)
    output.json_or_facts(view.fields, _facts(view), as_json=as_json)


@client_command("deferd pause orders.close", "deferd pause orders.close --reason 'the payment service is down'")
@topic_argument()
@click.option("--reason", metavar="TEXT", help="why, shown to people until the topic is resumed")
def pause(topic: str, reason: str | None, client: Client, as_json: bool) -> None:
    """Stop handing out the jobs of a topic."""
    _show_paused(client.pause(topic, reason=reason), as_json=as_json)


@client_command("deferd resume orders.close")
@topic_argument()
def resume(topic: str, client: Client, as_json: bool) -> None:
    """Hand out the jobs of a topic again."""
    _show_paused(client.resume(topic), as_json=as_json)


def _show_paused(view: TopicView, *, as_json: bool) -> None:
    counts = view.counts
    jobs = f"{counts['ready']:,} ready" if any(counts.values()) else "no jobs"  # perhaps the name is misspelled
    text = f"{view.topic} {'paused' if view.paused else 'handing out'}, {jobs}"
    output.json_or_line(view.fields, text, as_json=as_json)


def _current_settings(client: Client, name: str) -> dict[str, Any]:
    from deferd.contract.errors import TopicNotFound

    try:
        return dict(client.topic(name).settings_json)
    except TopicNotFound:
        return {}


def _facts(view: TopicView) -> Iterator[tuple[str, str]]:
    yield "topic", _name(view)
    if view.paused_reason:
        yield "paused because", output.printable(view.paused_reason)
    yield from ((state, output.number(view.counts[state])) for state in STATES)
    waiting = {"follow-ups": view.follow_ups, "collections": view.collections}
    yield from ((name, output.number(count)) for name, count in waiting.items() if count)
    yield "oldest ready", output.span(view.oldest_ready_age)
    yield "next due", "-" if view.next_due_at is None else output.when(view.next_due_at)
    settings = view.settings_json
    for field in (*POLICY, *TOPIC):
        if field.name != "partitions" or settings.get("partitions") is not None:
            yield field.name, _setting(field, settings.get(field.name))


def _setting(field: Field, value: Any) -> str:
    if value is None or (value == field.default and field.name in _WITHOUT):
        return _WITHOUT.get(field.name, _SERVICE_DEFAULT)
    return output.field_text(field, value)
