"""How the jobs of a topic are pushed: set and changed, with a secret that is rotated, tested, and removed."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Iterable
from typing import Any

import orjson
from starlette.responses import Response

from deferd.console.api_calls import ApiRefused, api_path, page_path
from deferd.console.rendering import etag_of, tojson_text
from deferd.console.views.forms import Form, FormField, read_number, read_seconds
from deferd.console.visit import PageList, Visit
from deferd.contract.operations.push import SetPush
from deferd.contract.webhook_signature import SECRET_PREFIX

pages = PageList()
_PATH = "/console/topics/{topic}/push"
_NEW_SECRET_BYTES = 32
_CHANGED = "The push was changed meanwhile. Below is what you typed; open it again to see what it is now."
_NOT_PUSHED = 404
_NO_TEST = {404, 422}


def read_headers(text: str) -> dict[str, str]:
    """Lines such as `name: value`. A name without a value stays, for the API to refuse: it would be lost otherwise."""
    headers: dict[str, str] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        name, colon, value = line.partition(":")
        if not colon:
            raise ValueError("must have lines such as authorization: Bearer 3f9a")
        if name.strip() in headers:
            raise ValueError("must not repeat a name")
        headers[name.strip()] = value.strip()
    return headers


def write_headers(names: Iterable[str]) -> str:
    """What `read_headers` reads, without the values: the API does not show them."""
    return "\n".join(f"{name}:" for name in names)


FIELDS = (
    FormField("url", "URL", "where the jobs are sent; the service must allow it by --push-allow"),
    FormField("secrets.0", "Secret", "whsec_ and the base64 of 24 to 64 bytes"),
    FormField("secrets.1", "Second secret", "while the first one is new to the receiver"),
    FormField("timeout", "Time-out", "seconds, or such as 1m; default 30", read_seconds),
    FormField("max_in_flight", "Requests under way at most", "default 10", read_number, control="number"),
    FormField("rate", "Requests a second at most", "empty: no limit", read_number, control="number"),
    FormField(
        "mode",
        "Jobs of a request",
        control="select",
        options=(("job", "one: its body is the request's"), ("batch", "up to 100, as a pop returns them")),
    ),
    FormField(
        "headers",
        "Further headers",
        "a line each, such as authorization: Bearer 3f9a. Stored values are not shown and must be typed again",
        read_headers,
        control="textarea",
    ),
)


@pages.page(_PATH)
async def push(visit: Visit, topic: str) -> Response:
    """The form, with what is stored."""
    return await _page(visit, topic, await _stored(visit, topic))


@pages.action(_PATH)
async def save(visit: Visit, topic: str) -> Response:
    """Set the push unless it was changed meanwhile; or fill in a new secret, which is not stored yet."""
    sent = await visit.form()
    if sent.get("then") == "secret":
        key = base64.b64encode(secrets.token_bytes(_NEW_SECRET_BYTES)).decode()
        sent["secrets.0"] = f"{SECRET_PREFIX}{key}"
        return await _page(visit, topic, await _stored(visit, topic), Form(FIELDS, sent), base=sent.get("base"))
    stored = await _stored(visit, topic)
    form = Form(FIELDS, sent)
    body = form.body()
    if "secrets" in body:
        body["secrets"] = list(body["secrets"].values())
    form.check(SetPush, body)
    if sent.get("base") != _base(stored):
        form.add_error("", _CHANGED)
    if not form.errors:
        try:
            await visit.write("PUT", api_path("topics", topic, "push"), body)
        except ApiRefused as refused:
            form.add_refusal(refused)
    if form.errors:
        return await _page(visit, topic, stored, form, base=sent.get("base"))
    return visit.redirect(_url(topic), notice=f"The jobs of {topic} are pushed as below. Send a test.")


@pages.action(_PATH + "/test")
async def test(visit: Visit, topic: str) -> Response:
    """Send a test, and show what the target responded."""
    try:
        result = await visit.write("POST", api_path("topics", topic, "push", "test"))
    except ApiRefused as refused:
        if refused.status not in _NO_TEST:
            raise
        return visit.redirect(_url(topic), problem=f"Nothing was sent: {refused}")
    visit.page = f"/{_url(topic)}"
    return await _page(visit, topic, await _stored(visit, topic), tested=result)


@pages.action(_PATH + "/remove")
async def remove(visit: Visit, topic: str) -> Response:
    """Stop pushing, if the name of the topic was typed."""
    if (await visit.form()).get("typed", "").strip() != (wanted := visit.to_confirm(topic)):
        return visit.redirect(_url(topic), problem=f"Nothing was changed: type {wanted} to stop pushing its jobs.")
    await visit.write("DELETE", api_path("topics", topic, "push"))
    notice = f"The jobs of {topic} are not pushed any more: consumers can pop them."
    return visit.redirect(page_path("console", "topics", topic), notice=notice)


async def _stored(visit: Visit, topic: str) -> dict[str, Any] | None:
    """The push as it is; None if the topic is not pushed."""
    try:
        found: dict[str, Any] = orjson.loads(await visit.read_fresh(api_path("topics", topic, "push")))
    except ApiRefused as refused:
        if refused.status != _NOT_PUSHED:
            raise
        return None
    return found


async def _page(
    visit: Visit,
    topic: str,
    stored: dict[str, Any] | None,
    form: Form | None = None,
    *,
    base: str | None = None,
    tested: dict[str, Any] | None = None,
) -> Response:
    if form is None:
        texts = Form.of_stored(FIELDS, stored or {"mode": "job"}).texts
        names = stored["header_names"] if stored else ()
        form = Form(FIELDS, {**texts, "headers": write_headers(names)})
    return visit.render(
        "push.html",
        status=422 if form.errors else 200,
        here="topics",
        topic=topic,
        path=_url(topic),
        stored=stored,
        form=form,
        base=base or _base(stored),
        tested=tested,
    )


def _base(stored: dict[str, Any] | None) -> str:
    """What tells whether the push has changed in the meantime."""
    return etag_of(tojson_text(stored)).strip('"')


def _url(topic: str) -> str:
    return page_path("console", "topics", topic, "push")
