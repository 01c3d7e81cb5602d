"""The application object: what FastAPI offers and the service does not call."""

from __future__ import annotations

import pytest

from deferd.api.app import create_app
from deferd.settings import Settings


@pytest.mark.parametrize("hook", ["add_middleware", "middleware", "add_exception_handler", "exception_handler"])
def test_a_hook_that_would_never_be_called_raises(hook: str) -> None:
    with pytest.raises(RuntimeError, match="calls no middleware and no exception handlers"):
        getattr(create_app(Settings(), ""), hook)("http")
