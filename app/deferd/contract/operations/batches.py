"""Batches: jobs that are counted under a name, so that one job is put when all of them have ended."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import Field

from deferd.contract import limits
from deferd.contract.model import JobId, Topic
from deferd.contract.operations.operation import Operation
from deferd.contract.operations.response import Response
from deferd.contract.scopes import Scope
from deferd.contract.strict_model import StrictModel


class BatchEnd(StrictModel):
    """The job that is put when all jobs of a batch have ended."""

    topic: Topic
    id: JobId | None = Field(default=None, description="Its id. Default: one that the service makes.")

    schema_examples = ({"topic": "imports.done", "id": "import-42"},)


class PutBatchOfJobs(StrictModel):
    """A batch to create, change or seal. What is left out stays as it is."""

    on_end: BatchEnd | None = Field(
        default=None,
        description="The job to put when the batch is sealed and all its jobs have ended. Its topic has one partition, "
        "and decides in which shard of the store the batch is: jobs of the batch must be in the same one. Required "
        "for a new batch.",
    )
    expect: int | None = Field(
        default=None,
        strict=True,
        ge=1,
        le=limits.BATCH_JOBS_MAX,
        description="The batch seals itself when this many jobs have been put into it.",
    )
    seal: bool = Field(
        default=False,
        strict=True,
        description="`true`: it takes no more jobs from now on. A batch stays sealed. One without jobs completes at "
        "once.",
    )

    schema_examples = (
        {"on_end": {"topic": "imports.done", "id": "import-42"}},
        {"on_end": {"topic": "imports.done"}, "expect": 2},
        {"seal": True},
    )


class EndOfBatch(Response, frozen=True, kw_only=True):
    """The job that a batch puts."""

    topic: Annotated[str, "Its topic."]
    id: Annotated[str | None, "Its id, if that was given."] = None

    schema_examples = ({"topic": "imports.done", "id": "import-42"},)


class Batch(Response, frozen=True, kw_only=True):
    """A batch, and how many of its jobs have ended."""

    name: Annotated[str, "Its name."]
    on_end: EndOfBatch
    expect: Annotated[int | None, "With how many jobs it seals itself, if that was given."] = None
    sealed: Annotated[bool, "Whether it takes no more jobs."]
    joined: Annotated[int, "How many jobs were put into it."]
    finished: Annotated[int, "How many of them were finished."]
    dead: Annotated[int, "How many became dead, and were not redriven since."]
    cancelled: Annotated[int, "How many were cancelled, or replaced by a job of another batch or of none."]
    created_at: Annotated[datetime, "When it was created."]
    completed_at: Annotated[
        datetime | None,
        "When it was sealed and all its jobs had ended, so that it put its job. From then on nothing changes it.",
    ] = None

    @property
    def live(self) -> int:
        """How many of its jobs have not ended."""
        return self.joined - self.finished - self.dead - self.cancelled

    schema_examples = (
        {
            "name": "import-42",
            "on_end": {"topic": "imports.done", "id": "import-42"},
            "sealed": True,
            "joined": 120,
            "finished": 117,
            "dead": 1,
            "cancelled": 0,
            "created_at": "2026-11-21T06:56:58.123Z",
        },
    )


class BatchPage(Response, frozen=True, kw_only=True):
    """One page of batches."""

    batches: list[Batch]
    next_cursor: Annotated[str | None, "The `cursor` of the next page; `null` on the last page."]

    schema_examples = ({"batches": [*Batch.schema_examples], "next_cursor": None},)


class DeletedBatch(Response, frozen=True, kw_only=True):
    """What the deletion of a batch did."""

    name: str
    cancelled: Annotated[
        int, "How many of its jobs were cancelled, by this request: also dead and finished ones that were kept."
    ]
    deleted: Annotated[
        bool, f"False when {limits.BULK_MAX} jobs were cancelled and there may be more: repeat the request."
    ]

    schema_examples = ({"name": "import-42", "cancelled": 2, "deleted": True},)


SET_BATCH = Operation(
    "set_batch",
    "PUT",
    "/batches/{name}",
    tag="batches",
    scope=Scope.PUT,
    summary="Create, change or seal a batch",
    description=(
        "A batch counts the jobs that are put with its name in `batch`, until it is sealed; its jobs may put others "
        "into it. When it is sealed and all its jobs have ended, which are finished, dead or cancelled, one job "
        'is put into `on_end.topic`, with the body `{"batch", "finished", "dead", "cancelled"}`: exactly one, in the '
        "same step of the store as the last end. A redrive, or an undo of a cancel, before that takes the job's end "
        "back. A completed batch is kept for a day, or until there are "
        f"{limits.BATCHES_COMPLETED_MAX} later ones in its shard of the store; then its name is free. One that is not "
        f"completed is kept until it is deleted, up to {limits.BATCHES_OPEN_MAX} in a shard."
    ),
    response=Batch,
    response_description="The batch existed.",
    errors=("different_shard",),
    done="set batch",
)
LIST_BATCHES = Operation(
    "list_batches",
    "GET",
    "/batches",
    tag="batches",
    scope=Scope.READ,
    summary="List batches",
    description=(
        "Returns the batches page by page, by name within each shard of the store. A page may be short, or empty, and "
        "yet have a `next_cursor`. A key for some topics sees only the batches that put their job into one of those."
    ),
    response=BatchPage,
    response_description="One page of batches.",
)
GET_BATCH = Operation(
    "get_batch",
    "GET",
    "/batches/{name}",
    tag="batches",
    scope=Scope.READ,
    summary="Get a batch",
    description="Returns the batch with its counts.",
    response=Batch,
    response_description="The batch.",
    errors=("batch_not_found",),
)
DELETE_BATCH = Operation(
    "delete_batch",
    "DELETE",
    "/batches/{name}",
    tag="batches",
    scope=Scope.CANCEL,
    summary="Delete a batch and cancel its jobs",
    description=(
        "Seals the batch, cancels its jobs and deletes it: it puts no job. To have it put its job, with their "
        f"number as `cancelled`, seal it and cancel the jobs with the tag `{limits.BATCH_TAG}NAME`. The jobs that are "
        "cancelled are those with this tag in the key's topics. After a 503 some of them may be: repeat the request."
    ),
    response=DeletedBatch,
    response_description="What was done.",
    errors=("batch_not_found",),
    done="deleted batch",
)
