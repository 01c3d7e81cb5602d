"""Search over all topics: jobs by their id or tag, topics, schedules and consumers; and the page of a consumer."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NamedTuple, TypeVar

from starlette.responses import Response

from deferd.console.api_calls import api_path, page_path
from deferd.console.views.filters import topics_filter
from deferd.console.visit import PageList, Visit
from deferd.contract import limits
from deferd.contract.topic_patterns import TopicPatterns

pages = PageList()
_TYPED = 400
_NAMES_SHOWN = 20
_TOPICS_SEARCHED = 200
_OF_TAG_SHOWN = 5
_AT_ONCE = 16
_CALLS_OF_TOPIC = 2
_CONSUMERS_READ = 1000
_HELD_READ = 1000
_HELD_TOPICS = 50
_RETURNED = 200
_IS_ID = re.compile(limits.ID_PATTERN)
_IS_TAG = re.compile(limits.TAG_PATTERN)
_IS_NAME = re.compile(limits.TOPIC_PATTERN)
Found = TypeVar("Found")


class Names(NamedTuple):
    """Topics and consumers with a text in their names, and schedules whose names begin with it."""

    topics: list[str]
    schedules: list[str]
    consumers: list[str]


class _Jobs(NamedTuple):
    """What the jobs of a topic have to do with the text: the state of the one with this id, and some with this tag."""

    topic: str
    state: str | None
    tagged: list[dict[str, Any]]
    has_more: bool


async def read_names(visit: Visit, text: str, most: int) -> Names:
    """The names that match, at most so many of each kind."""
    topics = await visit.read(api_path("overview"), name=text, sort="ready", limit=most) if _is_part(text) else None
    schedules = (
        await visit.read(api_path("schedules"), prefix=text, jobs=False, limit=most) if _IS_NAME.match(text) else None
    )
    consumers = await visit.read(api_path("consumers"), limit=_CONSUMERS_READ)
    named = [one["name"] for one in consumers["consumers"] if one["name"] and text.lower() in one["name"].lower()]
    return Names(
        sorted((one["topic"] for one in topics["topics"]), key=lambda name: (name != text, name)) if topics else [],
        [one["name"] for one in schedules["schedules"]] if schedules else [],
        named[:most],
    )


def may_be_of_job(text: str) -> bool:
    """Whether the text can be the id or a tag of a job."""
    return _IS_ID.match(text) is not None or _IS_TAG.match(text) is not None


def _is_part(text: str) -> bool:
    return 0 < len(text) <= limits.TOPIC_LENGTH


@pages.page("/console/search")
async def search(visit: Visit) -> Response:
    """What has the text as its id, tag or name, in all topics or in some."""
    visit.require("read")
    text = visit.query.get("q", "").strip()[:_TYPED]
    values: dict[str, Any] = {"q": text, "topics": topics_filter(visit), "names": None, "jobs": [], "searched": 0}
    if text:
        values |= {"names": await read_names(visit, text, _NAMES_SHOWN), **await _search_jobs(visit, text)}
    return visit.render("search.html", here="topics", **values)


async def _search_jobs(visit: Visit, text: str) -> dict[str, Any]:
    if not may_be_of_job(text):
        return {"of": 0}
    patterns = (topics_filter(visit) or "*").split(",")
    wanted = TopicPatterns(patterns)
    listing = await visit.read(api_path("overview"), sort="delayed", limit=limits.PAGE_MAX)
    names = [one["topic"] for one in listing["topics"] if wanted.match(one["topic"])]
    names += [name for name in patterns if "*" not in name and name not in names and visit.sees(name)]
    searched = names[:_TOPICS_SEARCHED]
    while searched and not visit.has_room_for(_CALLS_OF_TOPIC * len(searched)):
        searched = searched[: len(searched) // 2]
    found = await _for_all(searched, lambda topic: _search_topic(visit, topic, text))
    is_whole = listing["matching"] <= limits.PAGE_MAX or "*" not in ",".join(patterns)
    return {
        "jobs": [one for one in found if one.state is not None or one.tagged],
        "searched": len(searched),
        "of": len(names) if is_whole else max(listing["matching"], len(names)),
    }


async def _search_topic(visit: Visit, topic: str, text: str) -> _Jobs:
    state, tagged, has_more = None, [], False
    if _IS_ID.match(text):
        state = (await visit.read(api_path("jobs", topic, text, "why")))["state"]
    if _IS_TAG.match(text):
        listing = await visit.read_or_none(
            {404}, api_path("topics", topic, "jobs"), tag=text, limit=_OF_TAG_SHOWN, bodies=False
        )
        if listing is not None:
            tagged, has_more = listing["jobs"], listing["next_cursor"] is not None
    return _Jobs(topic, state, tagged, has_more)


async def _for_all(names: Iterable[str], act: Callable[[str], Awaitable[Found]]) -> list[Found]:
    """What `act` returns for each, a few at a time."""
    room = asyncio.Semaphore(_AT_ONCE)

    async def act_in_turn(name: str) -> Found:
        async with room:
            return await act(name)

    return await asyncio.gather(*map(act_in_turn, names))


@pages.page("/console/consumers/{name}")
async def consumer(visit: Visit, name: str) -> Response:
    """A consumer, and the jobs that it holds. One that has been away for a minute is not known, and may come back."""
    found, held, is_whole = await _read_consumer(visit, name)
    held.sort(key=lambda job: (job.get("reserved_since", ""), job["id"]))
    return visit.render("consumer.html", here="consumers", name=name, found=found, held=held, is_whole=is_whole)


@pages.action("/console/consumers/{name}/return")
async def return_held(visit: Visit, name: str) -> Response:
    """Return all jobs that the consumer holds to the queue: they are ready at once."""
    _, held, is_whole = await _read_consumer(visit, name)
    of_topic: dict[str, list[dict[str, str]]] = {}
    for job in held:
        of_topic.setdefault(job["topic"], []).append({"id": job["id"]})
    returned = 0
    for topic, jobs in of_topic.items():
        call = {"jobs": jobs, "consumer": name}
        results = (await visit.write("POST", api_path("topics", topic, "return"), call))["results"]
        returned += sum(result["status"] == _RETURNED for result in results)
    page = page_path("console", "consumers", name)
    if not returned:
        return visit.redirect(page, problem=f"{name} holds no job any more.")
    text = f"{returned:,} {'job was' if returned == 1 else 'jobs were'} returned to the queue."
    return visit.redirect(page, notice=text if is_whole else f"{text} Not all could be read: there may be more.")


async def _read_consumer(visit: Visit, name: str) -> tuple[dict[str, Any] | None, list[dict[str, Any]], bool]:
    """The consumer, None if it is not known; the jobs that it holds, and whether these are all."""
    listing = await visit.read(api_path("consumers"), limit=_CONSUMERS_READ)
    found = next((one for one in listing["consumers"] if one["name"] == name), None)
    topics = [topic for topic in found["topics"] if "*" not in topic] if found and found["held"] else []
    read = await _for_all(topics[:_HELD_TOPICS], lambda topic: _held(visit, topic, name))
    is_whole = len(topics) <= _HELD_TOPICS and all(is_whole for _, is_whole in read) and listing["complete"]
    return found, [job for jobs, _ in read for job in jobs], is_whole


async def _held(visit: Visit, topic: str, name: str) -> tuple[list[dict[str, Any]], bool]:
    """The jobs of a topic that the consumer holds, and whether these are all."""
    listing = await visit.read_or_none(
        {404}, api_path("topics", topic, "jobs"), state="reserved", limit=_HELD_READ, bodies=False
    )
    if listing is None:
        return [], True
    held = [job for job in listing["jobs"] if job.get("reserved_by") == name]
    return held, listing["next_cursor"] is None
