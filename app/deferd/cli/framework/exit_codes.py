"""The exit codes of the commands and of each error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from deferd.contract.errors import DeferdError

DONE: Final = 0
FAILED: Final = 1
USAGE: Final = 2
REFUSED: Final = 3
NOTHING_READY: Final = 4
NOT_ALLOWED: Final = 5
FINDINGS: Final = 6
INTERRUPTED: Final = 130
OUTPUT_CLOSED: Final = 141

MEANINGS: Final = {
    DONE: "done",
    FAILED: "the service or a store could not be reached, or failed",
    USAGE: "wrong usage, or an invalid value",
    REFUSED: "conflict with the current state: not found, exists, held, stale, cancelled, full",
    NOTHING_READY: "pop: nothing was ready; wait: the job has not ended",
    NOT_ALLOWED: "not allowed: no key, an unknown key, or one without the permission",
    FINDINGS: "audit: there are findings, or something could not be checked; sync --dry-run: something would change; "
    "now: something needs a person; doctor: something is wrong; wait: the job is dead or cancelled",
    INTERRUPTED: "ended by Ctrl-C, or not confirmed",
    OUTPUT_CLOSED: "the reader of the output stopped reading (| head)",
}
"""For the help; docs/command-line.md has them too."""

_NOT_ALLOWED_CODES = frozenset({"unauthorized", "forbidden"})
_USAGE_CODES = frozenset({"validation", "payload_too_large", "durability_unavailable", "different_shard"})
_REFUSED_CODES = frozenset(
    {
        *("job_exists", "job_reserved", "receipt_stale", "job_not_found", "topic_not_found", "job_cancelled"),
        *("topic_full", "schedule_not_found", "schedule_exists", "calendar_not_found", "task_not_found"),
        *("push_not_found", "topic_pushed", "not_yet_available", "batch_not_found", "batch_sealed"),
    }
)


class UsageError(Exception):
    """The arguments are wrong; the text says what, in one line."""


def of_code(code: str) -> int:
    """The exit code for an error code of the API or the client."""
    if code in _NOT_ALLOWED_CODES:
        return NOT_ALLOWED
    if code in _USAGE_CODES:
        return USAGE
    return REFUSED if code in _REFUSED_CODES else FAILED


def of_error(error: DeferdError) -> int:
    """The exit code for an error of the client."""
    return of_code(error.code)
