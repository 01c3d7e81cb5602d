"""The commands for topics: `topics`, `topic`, `pause`, `resume`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from deferd.cli.framework import exit_codes, output, values
from deferd.cli.framework.command import command
from deferd.cli.framework.connection import Connection
from deferd.cli.framework.exit_codes import UsageError
from deferd.cli.framework.options import STATES, connection_options, json_option, topic_argument, topic_options
from deferd.cli.framework.output import Column
from deferd.contract.fields import POLICY, TOPIC, Field

if TYPE_CHECKING:
    from deferd.client import Client, TopicView

_COUNTS = [Column("TOPIC"), *(Column(state.upper(), right=True) for state in STATES)]
_COLUMNS = [*_COUNTS, Column("OLDEST READY", right=True), Column("NEXT DUE", right=True)]
_NARROW_COLUMNS = [*_COUNTS, Column("OLDEST", right=True), Column("DUE", right=True)]
_SERVICE_DEFAULT = "the service's default"
_WITHOUT = {
    "window": "always open",
    "spread": "none",
    "max_jobs": "no limit",
    "durability": "what the store gives by itself",
    "events": "none kept",
}
"""What people read of settings that a topic does not have, if the service has no default for them."""


@command("deferd topics", "deferd topics --json | jq -r 'select(.counts.dead > 0).topic'")
@json_option()
@connection_options
def topics(as_json: bool, connection: Connection) -> int:
    """List all topics with their counts."""
    return list_topics(connection, as_json=as_json)


def list_topics(connection: Connection, *, as_json: bool) -> int:
    """List all topics; fails after those that can be read when a part of the store cannot be reached."""
    from deferd.cli.topics.unavailable_topics import UnavailableTopics

    views: list[TopicView] = []
    unavailable = UnavailableTopics()
    with connection.open() as client:
        for page in client.topic_pages():
            unavailable.note(page)
            if as_json:
                for view in page.topics:
                    output.json_line(view.fields)
            else:
                views += page.topics
    if not as_json:
        _show_table(views)
    for sentence in unavailable.sentences():
        output.complain(sentence)
    return exit_codes.FAILED if unavailable.shards else exit_codes.DONE


def _show_table(views: list[TopicView]) -> None:
    rows = [_row(view) for view in views]
    if not views:
        output.say_empty("there is no topic yet")
    elif output.fits(_COLUMNS, rows):
        output.show_table(_COLUMNS, rows)
    else:
        output.show_table(_NARROW_COLUMNS, [_short_row(view) for view in views])


@command(
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
@json_option()
@connection_options
def topic(
    topic: str, settings: dict[str, Any] | None, as_json: bool, connection: Connection, fields: dict[str, Any]
) -> None:
    """Show a topic. With --ttr and the like, change these of its settings and keep the others; they apply to jobs that
    are put from now on.
    """
    if settings is not None and fields:
        raise UsageError("--set replaces all settings: it cannot be combined with flags of single ones, such as --ttr")
    if fields.get("durability") == "none":
        fields["durability"] = None
    with connection.open() as client:
        if settings is not None:
            view = client.set_topic(topic, settings)
        elif fields:
            view = client.set_topic(topic, {**_current_settings(client, topic), **fields})
        else:
            view = client.topic(topic)
    if as_json:
        output.json_line(view.fields)
    else:
        _show_facts(view)


@command("deferd pause orders.close", "deferd pause orders.close --reason 'the payment service is down'")
@topic_argument()
@click.option("--reason", metavar="TEXT", help="why, shown to people until the topic is resumed")
@json_option()
@connection_options
def pause(topic: str, reason: str | None, as_json: bool, connection: Connection) -> None:
    """Stop handing out the jobs of a topic."""
    with connection.open() as client:
        _show_paused(client.pause(topic, reason=reason), as_json=as_json)


@command("deferd resume orders.close")
@topic_argument()
@json_option()
@connection_options
def resume(topic: str, as_json: bool, connection: Connection) -> None:
    """Hand out the jobs of a topic again."""
    with connection.open() as client:
        _show_paused(client.resume(topic), as_json=as_json)


def _show_paused(view: TopicView, *, as_json: bool) -> None:
    if as_json:
        output.json_line(view.fields)
    else:
        counts = view.fields["counts"]
        jobs = f"{counts['ready']:,} ready" if any(counts.values()) else "no jobs"  # perhaps the name is misspelled
        output.line(f"{view.topic} {'paused' if view.paused else 'handing out'}, {jobs}")


def _current_settings(client: Client, name: str) -> dict[str, Any]:
    from deferd.contract.errors import TopicNotFound

    try:
        return dict(client.topic(name).fields["settings"])
    except TopicNotFound:
        return {}


def _row(view: TopicView) -> list[str]:
    age = view.oldest_ready_age
    due_at = view.next_due_at
    return [
        _name(view),
        *(output.number(view.fields["counts"][state]) for state in STATES),
        "-" if age is None else output.span(age),
        "-" if due_at is None else output.from_now(due_at),
    ]


def _short_row(view: TopicView) -> list[str]:
    due_at = view.next_due_at
    due_in_s = None if due_at is None else max((due_at - datetime.now(UTC)).total_seconds(), 0.0)
    return [
        _name(view),
        *(output.short_number(view.fields["counts"][state]) for state in STATES),
        output.short_span(view.oldest_ready_age),
        output.short_span(due_in_s),
    ]


def _name(view: TopicView) -> str:
    return view.topic + (" (paused)" if view.paused else "")


def _show_facts(view: TopicView) -> None:
    settings = view.fields["settings"]
    waiting = {"follow_ups": view.follow_ups, "collections": view.collections}

    output.show_facts(
        [
            ("topic", _name(view)),
            *((("paused because", output.printable(why)),) if (why := view.fields.get("paused_reason")) else ()),
            *((state, output.number(view.fields["counts"][state])) for state in STATES),
            *((name.replace("_", "-"), output.number(count)) for name, count in waiting.items() if count),
            ("oldest ready", "-" if view.oldest_ready_age is None else output.span(view.oldest_ready_age)),
            ("next due", "-" if view.next_due_at is None else output.when(view.next_due_at)),
            *(
                (field.name, _setting(field, settings.get(field.name)))
                for field in (*POLICY, *TOPIC)
                if _is_shown(field, settings)
            ),
        ]
    )


def _setting(field: Field, value: Any) -> str:
    if value is None or (value == field.default and field.name in _WITHOUT):
        return _WITHOUT.get(field.name, _SERVICE_DEFAULT)
    return output.field_text(field, value)


def _is_shown(field: Field, settings: dict[str, Any]) -> bool:
    return field.name != "partitions" or settings.get("partitions") is not None
