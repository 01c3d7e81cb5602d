"""The client's own errors.

An error that the service names is raised as such: see the tree in `deferd.contract.errors`. The others are::

    DeferdError
    ├── CallFailed
    │   ├── NoAnswer           no response: it is unknown whether the request was executed
    │   │   └── Unreachable    the request was never sent, so it was not executed
    │   │       ├── ClientBusy     all connections of the client were in use for too long
    │   │       └── ClientClosed   the client was closed
    │   └── UnexpectedAnswer   the response is not one of a deferd service, or is an internal error of the service
    └── Undecryptable          a part of a job is encrypted, and the cipher cannot read it
"""

from __future__ import annotations

from deferd.contract.errors import DeferdError


class CallFailed(DeferdError):
    """Base of the failures for which the service named no error."""

    code = "call_failed"


class NoAnswer(CallFailed):
    """No response in time, or the connection broke: it is unknown whether the request was executed."""

    code = "no_answer"


class Unreachable(NoAnswer):
    """No connection to the service could be made, so the request was not executed."""

    code = "unreachable"


class ClientBusy(Unreachable):
    """All connections of the client were in use for too long: raise `connections`, or put in batches."""

    code = "client_busy"


class ClientClosed(Unreachable):
    """The client was closed before the request was sent."""

    code = "client_closed"


class UnexpectedAnswer(CallFailed):
    """The response is not the service's (a proxy's, for instance), or the service had an internal error.

    `status` is the HTTP status, `retry_after_s` the Retry-After header, if there is one. `is_problem`: it is a problem
    document with a code, so it is the service's.
    """

    code = "unexpected_answer"

    def __init__(self, status: int, detail: str, retry_after_s: int | None = None, *, is_problem: bool = False) -> None:
        self.status = status
        self.is_problem = is_problem
        self.retry_after_s = retry_after_s
        super().__init__(f"status {status}: {detail}")


class Undecryptable(DeferdError):
    """The cipher cannot read a part of a job: it has not its key, or the value was changed, moved or is not encrypted.

    `part` is `body`, `result`, `error` or `header:NAME`; `key` is the id of its key, if it is encrypted.
    """

    code = "undecryptable"

    def __init__(self, topic: str, part: str, reason: str, key: str | None = None) -> None:
        self.topic = topic
        self.part = part
        self.key = key
        super().__init__(f"the {part} of a job of topic {topic!r} cannot be read: {reason}")
