"""The documents: links, navigation, size, the names they use, the settings they list, the tests that show what they
promise, and that the site builds."""

from __future__ import annotations

import re
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import pytest
import yaml

import deferd.client
import deferd.testing
from deferd import AsyncClient
from deferd.cli.framework.exit_codes import MEANINGS
from deferd.settings import Settings, default_text, flag, variable
from tests.key_kinds import SHARD_KINDS, TOPIC_KINDS
from tests.openapi_document import openapi_document

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted((ROOT / "docs").glob("*.md"))
DOCUMENTS = [
    ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "tests/README.md")
] + PAGES
README_BYTES_MAX = 6000
SOURCES = [
    *(ROOT / name for name in ("Dockerfile", "docker-compose.yml", "openapi/openapi.yaml")),
    *sorted(path for pattern in ("*.py", "*.lua") for path in (ROOT / "app").rglob(pattern)),
]
DIALECT = re.compile(
    r"\b(anew|answer(s|ed|ing)?|mend(s|ed|ing)?|trouble|hangs? up|hung up|put off|what is no|to be had|takes? back"
    r"|whatever|whoever)\b",
    re.IGNORECASE,
)
"""Words that the glossary replaced."""


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def without_blocks(path: Path) -> str:
    """The text of a document without its fenced blocks."""
    return re.sub(r"^( *)```.*?^\1```$", "", text_of(path), flags=re.MULTILINE | re.DOTALL)


def prose_of(path: Path) -> str:
    """The text of a document without its code: neither fenced blocks nor `code`."""
    return re.sub(r"`[^`\n]*`", "", without_blocks(path))


def anchors_of(path: Path) -> set[str]:
    """The anchors of a document's headings, as forges and mkdocs make them."""
    headings = re.findall(r"^#+ (.+)$", without_blocks(path), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def links() -> list[tuple[Path, str]]:
    """The links of all documents."""
    return [(document, link) for document in DOCUMENTS for link in re.findall(r"\]\(([^)\s]+)\)", prose_of(document))]


def test_links_within_the_repository_lead_somewhere() -> None:
    anchors = {document: anchors_of(document) for document in DOCUMENTS}
    broken = []
    for document, link in links():
        target, _, anchor = link.partition("#")
        path = (document.parent / target).resolve() if target else document
        if "://" not in target and (not path.exists() or (anchor and anchor not in anchors[path])):
            broken.append((name_of(document), link))
    assert broken == []


def test_a_page_links_to_nothing_outside_of_the_site() -> None:
    """The site has only the files of docs/."""
    assert [(page.name, link) for page, link in links() if page in PAGES and link.startswith(("..", "/"))] == []


@pytest.mark.gate
@pytest.mark.slow
def test_the_site_builds_without_warnings(tmp_path: Path) -> None:
    mkdocs = Path(sysconfig.get_path("scripts")) / "mkdocs"
    ran = subprocess.run(
        [mkdocs, "build", "--strict", "--quiet", "--theme", "mkdocs", "--site-dir", tmp_path / "site"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert (ran.returncode, ran.stdout + ran.stderr) == (0, "")
    assert {page.stem for page in PAGES if page.stem != "index"} <= {
        path.name for path in (tmp_path / "site").iterdir()
    }
    reference = "".join(text_of(path / "index.html") for path in (tmp_path / "site").glob("python-*"))
    shown = {name.rpartition(".")[2] for name in re.findall(r'<h\d id="(deferd\.[\w.]+)"', reference)}
    methods = {name for name in dir(AsyncClient) if not name.startswith("_")}
    public = {*deferd.__all__, *deferd.client.__all__, *deferd.testing.__all__, *methods} - {"__version__"}
    assert public - shown == set()


def test_the_index_links_to_every_page() -> None:
    linked = set(re.findall(r"\]\((\w[\w-]*\.md)\)", text_of(ROOT / "docs/index.md")))
    assert linked == {page.name for page in PAGES} - {"index.md"}


def test_the_navigation_has_every_page_once() -> None:
    navigation: list[Any] = yaml.safe_load(text_of(ROOT / "mkdocs.yml"))["nav"]
    listed = [
        page for entry in navigation for page in ([entry] if isinstance(entry, str) else next(iter(entry.values())))
    ]
    assert sorted(listed) == [page.name for page in PAGES]


@pytest.mark.parametrize(("page", "least"), [("tests/README.md", 60), ("docs/guarantees.md", 35)])
def test_the_tests_that_a_page_names_exist(page: str, least: int) -> None:
    named = set(re.findall(r"`([\w/]+\.py)::(\w+)`", text_of(ROOT / page)))
    gone = [(path, name) for path, name in named if f"def {name}(" not in text_of(ROOT / "tests" / path)]
    assert (gone, len(named) >= least) == ([], True)


def test_each_promise_names_a_test() -> None:
    section = text_of(ROOT / "docs/guarantees.md").split("\n## Promises\n")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| **")]
    assert len(rows) >= 26
    for row in rows:
        shown_by = row.rstrip("|").rpartition("|")[2].strip()
        assert "::test_" in shown_by or shown_by.startswith("the same"), row


def test_the_readme_is_short() -> None:
    assert (ROOT / "README.md").stat().st_size <= README_BYTES_MAX


def test_documents_and_the_source_use_the_words_of_the_glossary() -> None:
    texts = {path: prose_of(path) for path in DOCUMENTS} | {path: text_of(path) for path in SOURCES}
    found = {name_of(path): [match[0] for match in DIALECT.finditer(text)] for path, text in texts.items()}
    assert {name: words for name, words in found.items() if words} == {}


def test_the_glossary_is_sorted_and_has_each_term_once() -> None:
    table, _, _ = text_of(ROOT / "docs/glossary.md").partition("\n## Verbs\n")
    terms = re.findall(r"^\| ([^|]+?)\*? \| ", table, re.MULTILINE)[1:]
    assert terms == sorted(set(terms), key=str.lower)


def test_every_setting_is_documented_with_its_default() -> None:
    lines = text_of(ROOT / "docs/configuration.md").splitlines()
    rows = [line.split("|") for line in lines if line.startswith("| `--")]
    for name in Settings.model_fields:
        [row] = [row for row in rows if f"`{flag(name)}`" in row[1]]
        assert f"`{variable(name)}`" in "|".join(row)
        assert (default_text(name) or "") in row[3], name


@pytest.mark.parametrize(("heading", "kinds"), [("Keys of a topic", TOPIC_KINDS), ("Keys of a shard", SHARD_KINDS)])
def test_each_kind_of_key_is_listed_with_what_bounds_it(heading: str, kinds: frozenset[str]) -> None:
    table = text_of(ROOT / "docs/authentication.md").split(f"\n{heading},")[1].split("\n\n")[1]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    listed = [name for keys, *_ in rows for name in re.findall(r"`([^`]+)`", keys)]
    assert sorted(listed) == sorted(kinds)
    assert all(holds and counted_by for _, holds, counted_by in rows)


def test_each_cache_is_listed_with_its_bound() -> None:
    table = text_of(ROOT / "docs/architecture.md").split("\n## Caches\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`.*`) \| .+ \| \d+ MiB(?: each)? \|$", table, re.MULTILINE)
    listed = [name for modules in rows for name in re.findall(r"`([^`]+)`", modules)]
    caches = re.compile(r"\blru_cache\(|@cache\b|(?:BoundedCache|SharedReads)(?:\[.*\])? = ")
    package = ROOT / "app/deferd"
    sources = {path.relative_to(package).as_posix(): text_of(path) for path in package.rglob("*.py")}
    assert sorted(listed) == sorted(name for name, source in sources.items() if caches.search(source))


def test_every_error_code_is_documented() -> None:
    openapi = openapi_document()
    codes = openapi["components"]["schemas"]["ProblemCode"]["x-extensible-enum"]
    text = text_of(ROOT / "docs/http-api.md")
    assert [code for code in codes if f"`{code}`" not in text] == []


def test_every_exit_code_is_documented() -> None:
    documented = re.findall(r"^\| (\d+) \|", text_of(ROOT / "docs/command-line.md"), re.MULTILINE)
    assert sorted(map(int, documented)) == sorted(MEANINGS)


def test_files_and_programs_that_documents_name_exist() -> None:
    text = "\n".join(map(text_of, DOCUMENTS))
    paths = re.findall(r"`((?:tests|app|docs|openapi|scripts)/[\w/.*-]*[\w*])/?`", text)
    assert [path for path in paths if not list(ROOT.glob(path))] == []
    for module in re.findall(r"python -m (tests\.[\w.]*\w)", text):
        path = ROOT / module.replace(".", "/")
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), module
