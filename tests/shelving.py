"""What tests do with the shelf."""

from __future__ import annotations

from deferd.engine.shelf import HELD_S
from deferd.shelf.moving import Mover


def let_go(mover: Mover) -> None:
    """Let the time pass in which ids that were asked for stay in the store."""
    mover._held._began_at_s -= 2 * HELD_S
    mover._none_leaves_until_s = 0.0
