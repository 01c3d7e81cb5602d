"""`deferd key list` and `deferd key revoke`: what they show, and how they edit the file."""

from __future__ import annotations

import json
import stat
import threading
from pathlib import Path

import pytest

from deferd.api.auth.api_keys import hash_of, parse_keys
from deferd.api.auth.key_source import NoSuchKey, revoke_key
from deferd.cli import main as cli

FILE = f"""# Keys of the shop's service.

# the shop itself
[[key]]
name = "shop"  # shown in logs
hash = "{hash_of("shop-secret")}"
# may cancel what it put
scopes = ["put", "cancel"]
topics = ["orders.*"]
requests_per_second = 50

[[ key ]]   # the closer
name = "closer"
hash = "{hash_of("closer-secret")}"
scopes = [
  "pop",
]

# for people
[[key]]
name = "ops"
hash = "{hash_of("ops-secret")}"
scopes = ["admin"]
# the end
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "keys.toml"
    path.write_text(FILE, encoding="utf-8")
    path.chmod(0o640)
    return path


def names(file: Path) -> list[str]:
    return [key.name for key in parse_keys(file.read_text(encoding="utf-8"))]


def comments(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("#")]


def test_the_list_shows_names_scopes_topics_and_limits_and_no_hash(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["key", "list", "--keys-file", str(file)]) == 0

    output = capsys.readouterr().out
    assert [line.split() for line in output.splitlines()] == [
        ["NAME", "SCOPES", "TOPICS", "BOUNDS"],
        ["shop", "put,", "cancel", "orders.*", "requests_per_second", "50"],
        ["closer", "pop", "*", "-"],
        ["ops", "admin", "*", "-"],
    ]
    assert "sha256" not in output


def test_a_new_key_is_appended_to_a_file_without_a_final_newline(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["key", "new", "--name", "new", "--scope", "put"]) == 0

    file.write_text(FILE.rstrip("\n") + capsys.readouterr().out, encoding="utf-8")
    assert names(file) == ["shop", "closer", "ops", "new"]


def test_a_new_key_is_json_for_programs(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["key", "new", "--name", "new", "--scope", "put", "--json"]) == 0

    printed = capsys.readouterr()
    made = json.loads(printed.out)
    assert (printed.err, made["name"]) == ("", "new")
    file.write_text(made["entry"], encoding="utf-8")
    assert names(file) == ["new"]
    assert hash_of(made["token"]) in made["entry"]


def test_the_list_is_json_for_programs(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEFERD_KEYS_FILE", str(file))

    assert cli.main(["key", "list", "--json"]) == 0

    shop, closer, _ = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert shop == {"name": "shop", "scopes": ["put", "cancel"], "topics": ["orders.*"], "requests_per_second": 50}
    assert closer == {"name": "closer", "scopes": ["pop"], "topics": ["*"]}


@pytest.mark.parametrize("name", ["shop", "closer", "ops"])
def test_a_revoked_key_is_removed_and_all_else_stays(file: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["key", "revoke", name, "--keys-file", str(file)]) == 0

    assert capsys.readouterr().out == f"{name} revoked\n"
    assert names(file) == [other for other in ("shop", "closer", "ops") if other != name]
    kept = [comment for comment in comments(FILE) if name != "shop" or comment != "# may cancel what it put"]
    assert comments(file.read_text(encoding="utf-8")) == kept
    assert hash_of(f"{name}-secret") not in file.read_text(encoding="utf-8")
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_a_link_to_the_file_stays_a_link(file: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.toml"
    link.symlink_to(file)
    revoke_key(link, "shop")
    assert link.is_symlink()
    assert names(file) == ["closer", "ops"]


def test_line_ends_stay_as_they_are(file: Path) -> None:
    file.write_bytes(FILE.replace("\n", "\r\n").encode())
    revoke_key(file, "closer")
    assert names(file) == ["shop", "ops"]
    assert file.read_bytes().count(b"\n") == file.read_bytes().count(b"\r\n")


def test_keys_revoked_at_the_same_time_are_all_removed(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    entries = [f'[[key]]\nname = "k{at}"\nhash = "{hash_of(str(at))}"\nscopes = ["put"]\n' for at in range(9)]
    file.write_text("\n".join(entries), encoding="utf-8")
    threads = [threading.Thread(target=revoke_key, args=(file, f"k{at}")) for at in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert names(file) == ["k8"]


def test_an_unknown_key_ends_with_3_and_lists_the_keys(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["key", "revoke", "shpo", "--keys-file", str(file)]) == 3
    assert capsys.readouterr().err == f"deferd: {file} has no key 'shpo'; it has shop, closer, ops\n"
    assert file.read_text(encoding="utf-8") == FILE
    with pytest.raises(NoSuchKey):
        revoke_key(file, "shpo")


def test_the_only_key_is_not_revoked(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A service would ignore a file without keys, and the key would stay valid."""
    for name in ("shop", "closer"):
        revoke_key(file, name)
    assert cli.main(["key", "revoke", "ops", "--keys-file", str(file)]) == 2
    assert "'ops' is the only key in" in capsys.readouterr().err
    assert names(file) == ["ops"]


A, B = (f'name = "{name}"NEXThash = "{hash_of(name)}"NEXTscopes = ["put"]' for name in "ab")
INLINE = f"key = [{{{A}}}, {{{B}}}]".replace("NEXT", ", ")
QUOTED_HEADER = f'[["key"]]NEXT{B}NEXT[[key]]NEXT{A}'.replace("NEXT", "\n")


@pytest.mark.parametrize("text", [INLINE, QUOTED_HEADER], ids=["inline", "quoted header"])
def test_a_file_in_another_layout_is_not_changed(file: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(text, encoding="utf-8")
    assert cli.main(["key", "revoke", "a", "--keys-file", str(file)]) == 2
    assert "remove 'a' by hand" in capsys.readouterr().err
    assert file.read_text(encoding="utf-8") == text


@pytest.mark.parametrize(
    "content", [None, "[[key", '[[key]]\nname = "sesame"\nhash = "sesame-token"\nscopes = ["put"]\n']
)
@pytest.mark.parametrize("words", [["list"], ["revoke", "a"]])
def test_an_invalid_file_is_refused_by_name(
    tmp_path: Path, words: list[str], content: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "keys.toml"
    if content is not None:
        file.write_text(content, encoding="utf-8")

    assert cli.main(["key", *words, "--keys-file", str(file)]) == 2

    captured = capsys.readouterr()
    assert captured.err.startswith(f"deferd: --keys-file (DEFERD_KEYS_FILE) {file} is ")
    assert "sesame-token" not in captured.out + captured.err
