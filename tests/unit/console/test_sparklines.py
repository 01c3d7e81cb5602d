"""The line of ready jobs beside a topic."""

from __future__ import annotations

import pytest

from deferd.console.rendering import sparkline_cell

WITH_AN_HOUR = [None] * 22 + [5] * 12 + [20] * 2


@pytest.mark.parametrize(
    ("history", "present", "path", "text"),
    [
        ([None, None, None, 0], 0, "M4 15h4", "none was ready"),
        ([0, 0, 10, 3, 0, 10], 10, "M0 15l4 -14h8", "10 ready, – an hour ago, at most 10"),  # noqa: RUF001 (as it is shown)
        ([10, 0, 1, 5], 0, "M0 1l4 7l4 7", "0 ready, – an hour ago, at most 10"),  # noqa: RUF001 (as it is shown)
        (WITH_AN_HOUR, 2000, "M44 15h24l4 -14", "2,000 ready, 5 an hour ago, at most 2,000"),
    ],
)
def test_the_line_is_relative_to_its_most_and_ends_now(
    history: list[int | None], present: int, path: str, text: str
) -> None:
    cell = sparkline_cell(history, present)
    assert f"<title>{text}</title>" in cell
    assert f'd="{path}"' in cell


@pytest.mark.parametrize("history", [None, [], [None, None]])
def test_there_is_none_where_nothing_is_known(history: list[int | None] | None) -> None:
    assert sparkline_cell(history, 5) == "<td></td>"


def test_a_page_of_them_is_small() -> None:
    """Larger regions than `REGION_KEPT_UP_TO` are not kept for other tabs."""
    assert len(sparkline_cell([number // 2 % 2 * 1000 for number in range(36)], 1)) < 300
