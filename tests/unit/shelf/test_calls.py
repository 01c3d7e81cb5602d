"""Frames in any pieces, and frames that are none."""

from __future__ import annotations

import pytest
from msgspec import msgpack

from deferd.engine.shelf import Job, Page, Wanted
from deferd.shelf import calls
from deferd.shelf.calls import VERBS, BadFrame, Frames, frame


def read(frames: Frames, data: bytes) -> list[tuple[int, object, object]]:
    return [(number, kind, msgpack.decode(value)) for number, kind, value in frames.feed(data)]


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_frames_are_read_in_any_pieces(size: int) -> None:
    sent = frame(1, "load", ["t", ["a", "b"]]) + frame(2, True, None) + frame(3, False, "x" * 300)
    frames = Frames()
    found = [one for at in range(0, len(sent), size) for one in read(frames, sent[at : at + size])]
    assert found == [(1, "load", ["t", ["a", "b"]]), (2, True, None), (3, False, "x" * 300)]


def test_a_frame_that_is_too_large_is_neither_sent_nor_read(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = frame(1, True, b"x" * 100)
    monkeypatch.setattr(calls, "FRAME_BYTES_MAX", 100)
    with pytest.raises(BadFrame, match="too large"):
        frame(1, True, b"x" * 100)
    with pytest.raises(BadFrame, match="too large"):
        read(Frames(), sent[:4])


@pytest.mark.parametrize("content", [b"", b"\xc1", msgpack.encode("text"), msgpack.encode([1, "verb"])])
def test_what_is_no_frame_is_refused(content: bytes) -> None:
    with pytest.raises(BadFrame, match="cannot be read"):
        read(Frames(), len(content).to_bytes(4, "little") + content)


def test_arguments_and_values_keep_their_types() -> None:
    [(_, _, raw)] = Frames().feed(frame(1, "page", ("t", Wanted(tag="x"), 9, (5, "a"), True)))
    wanted = VERBS["page"].call(lambda *args, **more: (args, more), raw)
    assert wanted == (("t", Wanted(tag="x"), 9, (5, "a")), {"reverse": True})
    assert type(wanted[0][1]) is Wanted
    page = Page([Job("a", b"\0\1")], 1, (7, "a"), False)
    [(_, _, value)] = Frames().feed(frame(1, True, page))
    found = VERBS["page"].read_value(value)
    assert found == page
    assert type(found.jobs[0]) is Job


def test_arguments_of_other_types_are_refused() -> None:
    [(_, _, raw)] = Frames().feed(frame(1, "load", ("t", "a")))
    with pytest.raises(ValueError, match="array"):
        VERBS["load"].call(lambda *_: None, raw)
