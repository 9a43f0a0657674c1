"""The documents at the root are true: what they name exists, and every module has its line.

Command lines are read from code: fenced blocks (of no language or a shell's) line by line, as a shell would, and code
within sentences. Output and other languages belong into blocks with a name of their own (`text`, `python`). Nothing is
run.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from services.cli.main import build_parser
from services.cluster.data_folder import DataFolder
from tests.architecture.test_imports import PACKAGES, ROOT

DOCUMENTS = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "THREAT_MODEL.md", "CHANGELOG.md", "infra/RUNBOOK.md")
SOURCE_SUFFIXES = (".py", ".lua", ".cpp", ".h")
SHELLS = ("", "sh", "bash", "shell", "console")

FENCED = re.compile(r"^[ ]*```([^\n`]*)\n(.*?)^[ ]*```[ ]*$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`([^`]+)`")
PATH = re.compile(r"(?:cache_store|worker|services|proto|tests|infra|\.ci)/[\w./-]*")
TEST = re.compile(r"(tests/[\w/]+\.py)::(\w+(?:::\w+)?)")
SUBSTITUTION = re.compile(r"\$\(([^()]*)\)")
ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
PUNCTUATION = frozenset("();<>|&")
REDIRECTIONS = frozenset("<>")


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def spans(text: str) -> list[str]:
    """Code within sentences, line breaks as spaces."""
    return [" ".join(span.split()) for span in CODE.findall(FENCED.sub("", text))]


def shell_lines(text: str) -> Iterator[str]:
    """Lines of the shell blocks; of a console's only what follows a prompt."""
    for language, body in FENCED.findall(text):
        language = language.strip()
        if language not in SHELLS:
            continue
        for line in body.replace("\\\n", " ").splitlines():
            prompted = line.strip().startswith("$ ")
            if prompted or language != "console":
                yield line.strip().removeprefix("$ ")


def commands(line: str) -> Iterator[list[str]]:
    """The simple commands of a shell line, without assignments before and redirections after them."""
    for inner in SUBSTITUTION.findall(line):
        yield from commands(inner)
    lexer = shlex.shlex(SUBSTITUTION.sub("SUBSTITUTED", line), posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    is_target = False
    for token in lexer:
        if is_target:
            is_target = False
        elif not set(token) <= PUNCTUATION:
            words.append(token)
        elif set(token) & REDIRECTIONS:
            is_target = True
            if words and words[-1].isdigit():  # the 2 of 2>
                words.pop()
        else:
            yield from _without_assignments(words)
            words = []
    yield from _without_assignments(words)


def _without_assignments(words: list[str]) -> Iterator[list[str]]:
    while words and ASSIGNMENT.fullmatch(words[0]):
        words = words[1:]
    if words:
        yield words


def arguments_of(words: list[str], program: str) -> list[str] | None:
    """What a command gives to `program`, however its path is written; None where it calls another."""
    return words[1:] if words[0] == program or words[0].endswith(f"/{program}") else None


def calls(text: str, program: str) -> list[list[str]]:
    """All calls of `program` in a document's shell blocks."""
    lines = (line for line in shell_lines(text) if program in line)
    found = (arguments_of(words, program) for line in lines for words in commands(line))
    return [arguments for arguments in found if arguments is not None]


def mentions(text: str, program: str) -> list[list[str]]:
    """Calls within sentences, which may be cut short; of `a|b|c` one for each."""
    found = []
    for span in spans(text):
        if span == program or span.startswith(f"{program} "):
            choices = product(*(word.split("|") for word in shlex.split(span.replace("…", ""))[1:]))
            found += [[word for word in words if word] for words in choices]
    return found


def exit_status(arguments: list[str]) -> int:
    """What the real parser ends with; 0 where it takes the arguments."""
    try:
        build_parser().parse_args(arguments)
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def modules() -> list[str]:
    """Source files that are ours, but for what opens a package."""
    files = (path for package in PACKAGES for path in sorted((ROOT / package).rglob("*")))
    return [str(p.relative_to(ROOT)) for p in files if p.suffix in SOURCE_SUFFIXES and p.name != "__init__.py"]


def packages() -> list[str]:
    return [
        f"{path.parent.relative_to(ROOT)}/"
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("__init__.py"))
    ]


def targets(text: str) -> set[str]:
    """Make targets that a document calls, in blocks or within sentences."""
    words = (word for arguments in calls(text, "make") + mentions(text, "make") for word in arguments)
    return {word for word in words if re.fullmatch(r"[a-z][a-z-]*", word)}


def makefile_targets() -> set[str]:
    return set(re.findall(r"^([a-z][a-z-]*):", read("Makefile"), re.MULTILINE))


def names_in(path: Path) -> set[str]:
    """Functions, classes, methods as Class::name, and assigned names of a test file."""
    found: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            methods = (each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))
            found |= {f"{node.name}::{method.name}" for method in methods}
        if isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return found


def claims() -> list[str]:
    """Items of the threat model's sections of claims."""
    sections = re.findall(r"^## Claims[^\n]*\n(.*?)(?=^## |\Z)", read("THREAT_MODEL.md"), re.MULTILINE | re.DOTALL)
    return [item for section in sections for item in re.split(r"^\* ", section, flags=re.MULTILINE)[1:]]


def test_every_module_has_one_line_in_the_architecture() -> None:
    listed = re.findall(r"^\* `([^`]+)`: \S", read("ARCHITECTURE.md"), re.MULTILINE)
    assert sorted(set(modules()) - set(listed)) == [], "give each a line under Modules in ARCHITECTURE.md"
    assert sorted(name for name in set(listed) if listed.count(name) > 1) == []


def test_every_package_has_a_heading_in_the_architecture() -> None:
    headings = set(re.findall(r"^### `([^`]+)`", read("ARCHITECTURE.md"), re.MULTILINE))
    assert headings == set(packages())


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_path_that_is_named_exists(document: str) -> None:
    named = {path for span in spans(read(document)) for path in PATH.findall(span)}
    assert sorted(path for path in named if not (ROOT / path).exists()) == []


def test_versions_stand_where_the_architecture_says() -> None:
    rows = re.findall(r"^\| [^|]+ \| `([A-Z_]+)` \| `([^`]+)` \|", read("ARCHITECTURE.md"), re.MULTILINE)
    assert rows
    assert [row for row in rows if not re.search(rf"^{row[0]} = ", read(row[1]), re.MULTILINE)] == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_test_that_is_named_exists(document: str) -> None:
    named = TEST.findall(read(document))
    files = {path: names_in(ROOT / path) for path, _ in named if (ROOT / path).is_file()}
    assert [f"{path}::{name}" for path, name in named if name not in files.get(path, set())] == []


def test_every_claim_of_the_threat_model_names_its_tests() -> None:
    assert claims()
    assert [item for item in claims() if not TEST.search(item)] == []


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md"])
def test_every_make_target_that_is_named_exists(document: str) -> None:
    assert sorted(targets(read(document)) - makefile_targets()) == []


def test_every_make_target_is_explained() -> None:
    assert sorted(makefile_targets() - targets(read("CONTRIBUTING.md"))) == []


@pytest.mark.parametrize("document", ["README.md", "infra/RUNBOOK.md"])
def test_every_command_line_is_one(document: str, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = [arguments for arguments in calls(read(document), "stemcache") if exit_status(arguments)]
    assert wrong == [], capsys.readouterr().err


def test_files_of_the_data_folder_are_called_what_they_are() -> None:
    folder = DataFolder(Path("/home"))
    known = {path.name for path in (folder.admin_token, folder.master_key, folder.metrics_token, folder.router_log)}
    named = re.findall(r"~/\.local/share/stemcache/([\w.-]+)", read("README.md"))
    assert named
    assert {*named} <= known


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_command_within_a_sentence_exists(document: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Such a one may lack its arguments, so it is asked for its help only."""
    mentioned = mentions(read(document), "stemcache")
    wrong = [arguments for arguments in mentioned if exit_status([*arguments, "--help"])]
    assert wrong == [], capsys.readouterr().err


LINES = {
    "stemcache up": [["up"]],
    "echo $(stemcache a b); stemcache c": [["a", "b"], ["c"]],
    'stemcache generate --key "$(stemcache tenants keys create x)" "a | b" | jq .': [
        ["tenants", "keys", "create", "x"],
        ["generate", "--key", "SUBSTITUTED", "a | b"],
    ],
    "A=1 .venv/bin/stemcache status > out 2>&1 &  # what it says": [["status"]],
    "stemcache up --redis-url redis://a:b@127.0.0.1:6379/0 && echo stemcache": [
        ["up", "--redis-url", "redis://a:b@127.0.0.1:6379/0"]
    ],
    "pip install stemcache": [],
}


@pytest.mark.parametrize("line", LINES)
def test_shell_lines_are_read_as_a_shell_would(line: str) -> None:
    assert calls(f"```sh\n{line}\n```\n", "stemcache") == LINES[line]


def test_output_is_no_command_line() -> None:
    text = "```console\n$ stemcache up\nstemcache 0.1.0 is up\n```\n```text\nstemcache 0.1.0 is up\n```\n"
    assert calls(text, "stemcache") == [["up"]]


def test_what_does_not_parse_is_noticed(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_status(["up", "--no-such-flag"]) != 0
    assert exit_status(["no-such-command", "--help"]) != 0
    assert "no-such-command" in capsys.readouterr().err
