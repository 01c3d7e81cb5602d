"""A network of a test's own: a Linux network namespace with loopback alone, in which packets are lost at will."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import threading
from collections.abc import Callable
from itertools import product

import pytest

_CLONE_NEWNET = 0x40000000


def in_network_namespace(body: Callable[[], None]) -> None:
    """Run `body`, and the processes that it starts, in a network namespace. Skip the test where there can be none.

    A namespace belongs to a thread and its children. So it ends with them, and the rest of the machine never sees it.
    """
    failure: list[BaseException] = []

    def run() -> None:
        try:
            _enter_namespace()
            body()
        except BaseException as exc:  # noqa: BLE001 (raised again below)
            failure.append(exc)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failure:
        raise failure[0]


def cut(one_side: list[str], other_side: list[str]) -> None:
    """Lose all packets between these addresses, without a sign to either side. Connections stay open."""
    for source, target in [*product(one_side, other_side), *product(other_side, one_side)]:
        subprocess.run(["iptables", "-A", "INPUT", "-s", source, "-d", target, "-j", "DROP"], check=True)


def _enter_namespace() -> None:
    for program in ("ip", "iptables"):
        if shutil.which(program) is None:
            pytest.skip(f"the program {program} is missing")
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNET) != 0:
        pytest.skip(f"no network namespace can be made here: {os.strerror(ctypes.get_errno())}")
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    listing = subprocess.run(["iptables", "-L"], check=False, capture_output=True, text=True)
    if listing.returncode:
        pytest.skip(f"iptables cannot be used here: {listing.stderr.strip()}")
