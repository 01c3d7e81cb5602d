"""The requests of puts, finishes and cancels.

They are below the methods, because the same ones are sent by `idempotency` after a lost response and by `joined_calls`
in place of a batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from deferd.client.jobs import JobRef
from deferd.client.request_body import JobToPut, encode, job_fields
from deferd.client.requests import ApiRequest, request_for
from deferd.client.response_reading import Read, reader_of
from deferd.contract.model import DurabilityLevel
from deferd.contract.operations import jobs as operations
from deferd.contract.operations.deliveries import FINISH_JOB
from deferd.contract.operations.operation import Operation
from deferd.contract.responses.job_calls import Cancelled, PutResult
from deferd.contract.responses.jobs import Delivery, Job

IfReserved = Literal["cancel", "refuse"]
FollowUp = Literal["cancel", "keep"]


def _is_repeatable(fields: Mapping[str, Any]) -> bool:
    """Whether a put may be sent again: the second of two equal appends would add its body once more."""
    return "id" in fields and fields.get("on_conflict") != "append"


def put(job: JobToPut) -> ApiRequest[Job]:
    """`POST /jobs`: one job, a PutJob or the JSON object of the contract."""
    fields = job_fields(job)
    return put_encoded(fields, encode(fields))


def put_encoded(fields: Mapping[str, Any], body: bytes) -> ApiRequest[Job]:
    """As `put`, for a job that is encoded already."""
    accepts_existing = fields.get("on_conflict", "reject") != "reject"
    success = (200, 201) if accepts_existing else None
    request = request_for(operations.PUT_JOB, body=body, success=success, repeatable=_is_repeatable(fields))
    return request.reading(reader_of(Job))


def put_many(jobs: Sequence[JobToPut]) -> ApiRequest[list[PutResult]]:
    """`POST /jobs/batch`: 1 to 1000 jobs, each a PutJob or the JSON object of the contract."""
    items = [job_fields(job) for job in jobs]
    repeatable = all(map(_is_repeatable, items))
    request = request_for(operations.PUT_JOBS, body=encode({"jobs": items}), repeatable=repeatable)
    return request.giving(lambda batch: batch.results)


def cancel(
    topic: str,
    id: str,
    *,
    if_reserved: IfReserved = "cancel",
    follow_up: FollowUp = "cancel",
    durability: DurabilityLevel | None = None,
) -> ApiRequest[Cancelled]:
    """`DELETE /jobs/{topic}/{id}`."""
    query = cancel_options(if_reserved, follow_up)
    if durability is not None:
        query["durability"] = durability
    return request_for(operations.CANCEL_JOB, topic, id, query=query or None)


def cancel_options(if_reserved: str, follow_up: str) -> dict[str, str]:
    """The options of a cancel that differ from the defaults."""
    options = {"if_reserved": if_reserved, "follow_up": follow_up}
    return {name: value for name, value in options.items() if value != "cancel"}


def finish(job: JobRef | Delivery, result: Any = None, put: Sequence[JobToPut] = ()) -> ApiRequest[None]:
    """`POST /jobs/{topic}/{id}/finish`: end this delivery with a result, which is kept if the job has a `retain`.

    `put` are jobs to put in the same step, each a PutJob or the JSON object of the contract.
    """
    fields: dict[str, Any] = {} if result is None else {"result": result}
    if put:
        fields["put"] = [job_fields(one) for one in put]
    return on_delivery(FINISH_JOB, job, fields).giving(lambda _: None)


def on_delivery(operation: Operation[Read], job: JobRef | Delivery, fields: dict[str, Any]) -> ApiRequest[Read]:
    """A request that ends or extends a delivery. Without a receipt it is not repeatable: it may hit the next one."""
    has_receipt = job.receipt is not None
    if has_receipt:
        fields["receipt"] = job.receipt
    return request_for(operation, job.topic, job.id, body=encode(fields), repeatable=has_receipt)
