"""A network of a test's own, in which packets can be held up: a Linux network namespace with nothing but loopback.

A thread makes it, and all threads and processes that this one starts are in it. It ends with the last of them, so
nothing is left behind, and the machine's own network is never touched. It needs root, and the programs `ip` and
`iptables`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import cache
from itertools import product
from typing import TypeVar

import pytest

from tests.programs import require_program

_CLONE_NEWNET = 0x40000000
_PROGRAM_S = 20.0
Result = TypeVar("Result")


class NoPrivateNetwork(Exception):
    """This machine does not allow it; the message says why."""


def in_private_network(run: Callable[[], Result]) -> Result:
    """Call `run` in a thread that has a network of its own, and return its result. Raises NoPrivateNetwork."""
    results: list[Result] = []
    errors: list[BaseException] = []

    def call() -> None:
        try:
            _enter()
            results.append(run())
        except BaseException as error:  # noqa: BLE001 (it is raised in the thread that waits)
            errors.append(error)

    thread = threading.Thread(target=call, name="private network", daemon=True)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def in_private_network_if_possible(run: Callable[[], Result]) -> Result:
    """As `in_private_network`, or in the machine's network where there cannot be another."""
    return in_private_network(run) if why_no_private_network() is None else run()


@cache
def why_no_private_network() -> str | None:
    """Why a test cannot have one on this machine; None if it can."""
    try:
        in_private_network(lambda: None)
    except NoPrivateNetwork as why:
        return str(why)
    return None


def require_private_network() -> None:
    """End the test here where it cannot have one: it is skipped, but fails in CI if only a program is missing."""
    if sys.platform == "linux":
        require_program("ip")
        require_program("iptables")
    if (why := why_no_private_network()) is not None:
        pytest.skip(why)


def _enter() -> None:
    """Move the calling thread into a new network."""
    if sys.platform != "linux":
        raise NoPrivateNetwork("network namespaces need Linux")
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNET):
        raise NoPrivateNetwork(f"a network namespace needs root: {os.strerror(ctypes.get_errno())}")
    _run("ip", "link", "set", "lo", "up")
    _run("iptables", "-w", "-L", "-n")


def _run(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PROGRAM_S, check=False)
    except FileNotFoundError as exc:
        raise NoPrivateNetwork(f"the program {command[0]} is not installed") from exc
    if done.returncode:
        raise NoPrivateNetwork(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def cut(one_side: list[str], other_side: list[str]) -> None:
    """Lose all packets between these addresses, without a sign to either side. Connections stay open."""
    for source, target in [*product(one_side, other_side), *product(other_side, one_side)]:
        _run("iptables", "-w", "-A", "INPUT", "-s", source, "-d", target, "-j", "DROP")


class HeldUp:
    """How many packets were held up, after the end of the block."""

    packets = 0


@contextlib.contextmanager
def packets_held_up(*ports: int) -> Iterator[HeldUp]:
    """Drop all packets to and from these ports during the block, in the private network of the calling thread.

    No connection is closed by that: the kernel sends what was dropped again, also after the block.
    """
    rules = [("INPUT", "-p", "tcp", end, str(port), "-j", "DROP") for port in ports for end in ("--dport", "--sport")]
    held_up = HeldUp()
    try:
        for rule in rules:
            _run("iptables", "-w", "-I", *rule)
        yield held_up
    finally:
        listed = _run("iptables", "-w", "-nvxL", "INPUT").splitlines()
        held_up.packets = sum(int(line.split()[0]) for line in listed if " DROP " in line)
        for rule in rules:
            _run("iptables", "-w", "-D", *rule)
