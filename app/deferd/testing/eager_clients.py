"""The clients of EagerJobs: the real ones, with EagerJobs in place of the network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from pydantic_core import from_json, to_json

from deferd.client import AsyncClient, Client
from deferd.client.api_methods import ApiMethods
from deferd.client.put_options import check_put
from deferd.client.requests import ApiRequest, Result
from deferd.client.sender import Sender, SendOutcome
from deferd.client.transport import Transport
from deferd.contract.errors import DeferdError, JobExists, JobReserved

if TYPE_CHECKING:
    from deferd.testing.eager import EagerJobs

_NO_SERVICE = "http://eager.invalid"


class EagerUnsupported(NotImplementedError):
    """The call, such as a pop, needs a service: EagerJobs has no store. Use the fixture `deferd_service`."""


class EagerClient(Client):
    """A Client whose puts and cancels are performed in this process."""

    def __init__(self, jobs: EagerJobs) -> None:
        super().__init__(_NO_SERVICE, key="")
        self._methods = ApiMethods(self._transport, _EagerSender(self._transport, jobs, in_loop=False))


class EagerAsyncClient(AsyncClient):
    """An AsyncClient whose puts and cancels are performed in this process."""

    def __init__(self, jobs: EagerJobs) -> None:
        super().__init__(_NO_SERVICE, key="")
        ApiMethods.__init__(self, self._transport, _EagerSender(self._transport, jobs, in_loop=True))


class _EagerSender(Sender):
    def __init__(self, transport: Transport, jobs: EagerJobs, *, in_loop: bool) -> None:
        super().__init__(transport, [_NO_SERVICE], retry_for_s=0)
        self._jobs = jobs
        self._in_loop = in_loop

    async def try_to_send(
        self,
        call: ApiRequest[Result],
        *,
        retry_for_s: float | None = None,  # noqa: ARG002 (nothing is retried)
        doubtful: bool = False,
    ) -> SendOutcome[Result]:
        try:
            response = await self._respond(call)
        except DeferdError as error:
            return SendOutcome(None, error, doubtful)
        return SendOutcome(call.read(to_json(response)), None, doubtful)

    async def _respond(self, call: ApiRequest[Any]) -> Mapping[str, Any]:
        sent = from_json(call.body or b"null")
        match call.method, *call.path.strip("/").split("/"):
            case "POST", "jobs":
                _, job = await self._jobs.put(sent, in_loop=self._in_loop)
                return job
            case "POST", "jobs", "batch":
                for fields in sent["jobs"]:
                    check_put(fields)
                return {"results": [await self._put_one(fields) for fields in sent["jobs"]]}
            case "DELETE", "jobs", topic, job_id:
                return self._jobs.cancel(unquote(topic), unquote(job_id), call.query or {})
        raise EagerUnsupported(
            f"{call.method} {call.path}: EagerJobs supports puts and cancels of single jobs only; for other calls use "
            "the fixture `deferd_service`"
        )

    async def _put_one(self, fields: dict[str, Any]) -> dict[str, Any]:
        named = {"topic": fields["topic"], "id": fields["id"]}
        try:
            status, _ = await self._jobs.put(fields, in_loop=self._in_loop)
        except (JobExists, JobReserved) as error:
            return {**named, "status": 409, "code": error.code}
        return {**named, "status": status}
