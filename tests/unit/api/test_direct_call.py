"""Calls on a direct path, apart from their connections."""

from __future__ import annotations

import gc
import weakref
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from deferd.api.auth.admission import WITHOUT_KEY
from deferd.api.direct.verb import DirectCall
from deferd.api.operation import OperationRoute


class Work:
    """Stands for a waiting pop, which refers to its call."""


class Connection:
    def caller(self, _headers: Any) -> None: ...

    def end_call(self, *_args: Any) -> None: ...

    def end_call_with(self, *_args: Any) -> None: ...


@pytest.mark.parametrize("end", ["respond", "disconnect"])
def test_a_call_that_has_ended_is_freed_without_the_collector(end: str) -> None:
    work = Work()
    freed = weakref.ref(work)
    call = DirectCall(Connection(), [], cast("OperationRoute", SimpleNamespace(path="/test")), "GET", WITHOUT_KEY)
    call.abandon = partial(lambda _work, _call: None, work, call)
    del work
    gc.disable()
    try:
        if end == "respond":
            call.respond(200, b"{}")
        else:
            call.disconnect()
        del call
        assert freed() is None
    finally:
        gc.enable()
