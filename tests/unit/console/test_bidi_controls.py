"""Characters that reorder text are shown as escapes, on all pages."""

from __future__ import annotations

import json
import unicodedata

import pytest
from markupsafe import escape

from deferd.console.rendering import Renderer, without_bidi_controls

_CLASSES = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
CONTROLS = [chr(code) for code in range(0x10000) if unicodedata.bidirectional(chr(code)) in _CLASSES]
MARKS = ["\u200e", "\u200f", "\u061c"]


@pytest.mark.parametrize("control", [*CONTROLS, *MARKS], ids=ascii)
def test_text_shows_them_as_escapes_of_json_and_attributes_keep_them(control: str) -> None:
    body = json.dumps({"to": f"alice{control}bob"}, ensure_ascii=False)
    page = f'<input value="{escape(body)}"><p>{escape(body)} 8 &gt; 7</p>'
    shown = without_bidi_controls(page)
    assert f'<input value="{escape(body)}">' in shown
    text = str(escape(json.dumps({"to": f"alice{control}bob"})))
    assert f"<p>{text} 8 &gt; 7</p>" in shown


def test_a_page_without_them_stays_as_it_is() -> None:
    assert without_bidi_controls("<p>שלום · — 🙂</p>") == "<p>שלום · — 🙂</p>"


def test_pages_and_regions_are_without_them() -> None:
    values = {"q": "a\u202eb", "found": [("topic", "a\u202eb", "console/topics/x")]}
    assert "a\\u202eb" in Renderer().render_regions("go.html", ["found"], values)
