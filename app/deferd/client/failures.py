"""What a call of the client can fail with.

::

    CallFailed
    ├── CallRefused    the service answered, with an error
    └── NoAnswer       no answer came: whether the call was carried out is not known
"""

from __future__ import annotations


class CallFailed(Exception):
    """Base of all failures of a call."""


class CallRefused(CallFailed):
    """The service answered with an error.

    `status` is the HTTP status and `code` the error's stable word, such as `validation` or `store_unavailable`; it
    is None when the answer came from something else on the way, such as a proxy. `detail` is for people.
    """

    def __init__(self, status: int, code: str | None, detail: str) -> None:
        self.status = status
        self.code = code
        self.detail = detail
        super().__init__(f"{status} {code or 'without a code'}: {detail}")


class NoAnswer(CallFailed):
    """The service could not be reached, did not answer in time, or the connection broke."""
