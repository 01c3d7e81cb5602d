"""`deferd audit`: checks that the store is consistent, and repairs it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from deferd.cli.framework import exit_codes, output
from deferd.cli.framework.options import client_command, topic_argument
from deferd.cli.framework.output import Column
from deferd.client import Client, StoreAudit, TopicAudit, UnexpectedAnswer
from deferd.contract.errors import StoreUnavailable, TopicNotFound

_SUMS = ("put", "finished", "cancelled", "dropped", "lost", "dead", "live")
_COLUMNS = [Column("TOPIC"), *(Column(name.upper(), right=True) for name in _SUMS), Column("RESULT")]
_SHOWN_TOPICS = 40
"""Most clean topics in the table."""
_SHOWN_EXAMPLES = 5
_OVERDUE_S = 5.0


@client_command("deferd audit", "deferd audit orders.close --repair", "deferd audit --json | jq 'select(.clean | not)'")
@topic_argument("these topics; without any, all topics of the store", name="topics", metavar="[TOPIC]...", nargs=-1)
@click.option("--repair", is_flag=True, help="repair what is found, and check again")
def audit(topics: tuple[str, ...], repair: bool, client: Client, as_json: bool) -> int:
    """Check what the store holds of each topic while the service runs: every job is in exactly one state, and all that
    were ever put are accounted for. Without TOPIC, also look for topics that are missing from the list. With --repair,
    repair what is found and check again. If the service has keys, this needs one with the scope admin.
    """
    is_sound = _run(client, topics, repair=repair, as_json=as_json)
    return exit_codes.DONE if is_sound else exit_codes.FINDINGS


def _run(client: Client, topics: tuple[str, ...], *, repair: bool, as_json: bool) -> bool:
    shown: list[TopicAudit] = []
    checked, was_clean, is_sound = 0, True, True
    store: StoreAudit | None = None
    names: Iterator[str] = iter(dict.fromkeys(topics))
    if not topics:
        store = client.repair_store() if repair else client.audit_store()
        names = _all_names(client, store)
        if as_json:
            output.json_line(store.fields)
        was_clean = not store.findings
        is_sound = was_clean or (repair and not client.audit_store().findings)
    for name in names:
        found = _check(client, name, repair=repair, may_be_gone=not topics)
        if found is None:
            continue
        checked += 1
        if as_json:
            output.json_line(found.fields)
        elif not found.clean or _is_late(found) or checked <= _SHOWN_TOPICS:
            shown.append(found)
        was_clean = was_clean and found.clean
        is_sound = is_sound and (found.clean or (repair and _is_repaired(client, name)))
    if not as_json:
        _show(shown, store, checked)
        _conclude(checked, is_sound, was_clean, topics, repair=repair)
    return is_sound


def _all_names(client: Client, store: StoreAudit) -> Iterator[str]:
    """The topics that the list lacks come first: until they are repaired, reading the list may fail."""
    unlisted = store.unlisted
    yield from unlisted
    seen = set(unlisted)
    try:
        for page in client.topic_pages():
            yield from (view.topic for view in page.topics if view.topic not in seen)
            if page.unreadable_shards:
                raise StoreUnavailable("a part of the store cannot be reached: its topics were not checked")
    except UnexpectedAnswer:
        if store.clean:
            raise
        output.complain(
            "the list of topics cannot be read until these findings are repaired; other topics were not checked"
        )


def _check(client: Client, name: str, *, repair: bool, may_be_gone: bool) -> TopicAudit | None:
    try:
        return client.repair(name) if repair else client.audit(name)
    except TopicNotFound:
        if may_be_gone:  # purged since its name was read
            return None
        raise


def _is_repaired(client: Client, name: str) -> bool:
    again = _check(client, name, repair=False, may_be_gone=True)
    return again is None or again.clean


def _is_late(found: TopicAudit) -> bool:
    return bool(found.fields["timer_overdue"] >= _OVERDUE_S)


def _show(topics: list[TopicAudit], store: StoreAudit | None, checked: int) -> None:
    if topics:
        rows = [_row(found, output.number) for found in topics]
        if not output.fits(_COLUMNS, rows):
            rows = [_row(found, output.short_number) for found in topics]
        output.show_table(_COLUMNS, rows)
    if checked > len(topics):
        output.line(f"and {checked - len(topics):,} more that are clean")
    if store is not None:
        _show_findings("the store", store)
        if count := store.fields["stray_count"]:
            shown = ", ".join(store.fields["stray_keys"][:_SHOWN_EXAMPLES])
            output.line(output.printable(f"\nharmless: {count:,} keys that belong to no topic, such as {shown}"))
    for found in topics:
        _show_findings(found.topic, found)
        if _is_late(found):
            overdue = output.span(found.fields["timer_overdue"])
            output.line(f"\n{found.topic}: the timer is {overdue} behind: is a service running on this store?")


def _row(found: TopicAudit, number: Any) -> list[str]:
    sums = found.sums
    return [found.topic, *("-" if sums is None else number(sums[name]) for name in _SUMS), _result(found)]


def _result(found: TopicAudit) -> str:
    count = sum(found.findings.values())
    if not count:
        return "clean" if found.clean else "NOT CHECKED"
    if found.repaired:
        return f"{count:,} REPAIRED"
    return output.count(count, "finding").upper()


def _show_findings(name: str, found: StoreAudit | TopicAudit) -> None:
    for finding in found.fields["findings"]:
        kind = finding["kind"]
        output.line(f"\n{name}: {finding['found']:,} {kind}{' repaired' if found.repaired else ''}")
        output.line(f"  what it means: {finding['meaning']}")
        output.line(f"  what --repair {'did' if found.repaired else 'does'}: {finding['repair']}")
        examples = [example for example in found.examples if example.kind == kind]
        for example in examples[:_SHOWN_EXAMPLES]:
            output.line(output.printable(f"  {example.subject}: {example.detail}"))
        if finding["found"] > _SHOWN_EXAMPLES:
            output.line("  ... (--json has up to 100)")
    if isinstance(found, TopicAudit) and found.unchecked is not None:
        output.line(f"\n{name}: not checked: {found.unchecked}")


def _conclude(checked: int, is_sound: bool, was_clean: bool, topics: tuple[str, ...], *, repair: bool) -> None:
    what = f"\n{output.count(checked, 'topic')} checked: "
    if was_clean:
        output.line(f"{what}no findings")
    elif is_sound:
        output.line(f"{what}repaired, and checked again: no findings")
    elif repair:
        output.line(f"{what}findings are left: see above")
    else:
        repair_command = " ".join(["deferd audit", *topics, "--repair"])
        output.line(f"{what}there are findings. To repair them: {repair_command}")
