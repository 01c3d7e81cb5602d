"""The operations of all tables in this package, for code that needs every one; a new table is found by itself."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

from deferd.contract import operations
from deferd.contract.operations.operation import Operation


def all_operations() -> list[Operation[Any]]:
    """Table by table, in the order of their names."""
    modules = [
        importlib.import_module(f"{operations.__name__}.{module.name}")
        for module in pkgutil.iter_modules(operations.__path__)
    ]
    return [row for module in modules for row in vars(module).values() if isinstance(row, Operation)]
