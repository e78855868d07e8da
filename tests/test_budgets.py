"""The budgets of the design: lengths, start-up, names, doors."""

from __future__ import annotations

import ast
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house import PACKAGE, ROOT, docstring_lines, parse, python_files, room_of, rooms

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60

#: Names of model families. They live in octavo/models, where a new architecture is one file.
FAMILIES = re.compile(r"llama|smollm|mistral|mixtral|qwen|gemma|deepseek|\bphi\d|falcon", re.IGNORECASE)

#: Words that hold a family's name and are not about the family.
NOT_FAMILIES = re.compile(r"llama\.cpp|llama3(?=['\"])", re.IGNORECASE)

#: Where a stored format or a tokenizer itself is keyed by an architecture's name: file -> why.
FAMILY_NAMES_ALLOWED = {
    "octavo/weights": "GGUF keys begin with the architecture's name",
    "octavo/text": "GGUF names its pre-tokenizers after families",
}

NATIVE_FILES = sorted([*(ROOT / "native").rglob("*.cpp"), *(ROOT / "native").rglob("*.hpp")])


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def is_data_table(path: Path) -> bool:
    """A file that only assigns literals."""
    body = [node for node in parse(path).body if not isinstance(node, ast.Expr | ast.Import | ast.ImportFrom)]
    return all(isinstance(node, ast.Assign | ast.AnnAssign) for node in body)


def test_no_file_is_too_long() -> None:
    files = [path for path in python_files("octavo", "tests", "benchmarks") if not is_data_table(path)]
    lengths = {relative(path): len(path.read_text().splitlines()) for path in files + NATIVE_FILES}
    assert {name: length for name, length in lengths.items() if length > MAX_FILE_LINES} == {}


def test_no_python_function_is_too_long() -> None:
    lengths = {
        f"{relative(path)}:{node.lineno} {node.name}": (node.end_lineno or 0) - node.lineno + 1
        for path in python_files("octavo", "tests", "benchmarks")
        for node in ast.walk(parse(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert {name: length for name, length in lengths.items() if length > MAX_FUNCTION_LINES} == {}


#: What does not count as code when braces are matched.
_NATIVE_PROSE = re.compile(r'//[^\n]*|"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)\'')
#: What opens a block that holds functions.
_NATIVE_CONTAINER = re.compile(r"\b(namespace|struct|class|union|enum|extern)\b(?![^{]*\))")


def native_functions(text: str) -> Iterator[tuple[int, int]]:
    """(first line, lines) of each function of a C++ file: a block in no other block but namespaces and classes."""
    code = _NATIVE_PROSE.sub("", text)
    opened: list[tuple[int, bool]] = []  # (line, is a container) of each open block
    line, start = 1, 0
    for place, character in enumerate(code):
        if character == "\n":
            line += 1
        elif character == "{":
            opened.append((line, _NATIVE_CONTAINER.search(code, start, place) is not None))
        elif character == "}":
            first, is_container = opened.pop()
            if not is_container and all(outer for _, outer in opened):
                yield first, line - first + 1
        if character in "{};":
            start = place + 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("namespace a {\nstruct S {\n  int f() {\n    if (x) {\n    }\n  }\n};\n}\n", [(3, 4)]),
        ('void f(struct S s) {\n  g("}"); // }\n}\n', [(1, 3)]),
        ("template <typename L>\nstruct S {\n  int x = 1;\n};\n", []),
    ],
)
def test_functions_are_found_in_native_code(text: str, expected: list[tuple[int, int]]) -> None:
    assert list(native_functions(text)) == expected


def test_no_native_function_is_too_long() -> None:
    lengths = {
        f"{relative(path)}:{start}": length
        for path in NATIVE_FILES
        for start, length in native_functions(path.read_text())
    }
    assert lengths
    assert {name: length for name, length in lengths.items() if length > MAX_FUNCTION_LINES} == {}


def code_words(path: Path) -> Iterator[tuple[int, str]]:
    """(line, text) of each identifier and string of a file, docstrings aside; comments are not code."""
    tree = parse(path)
    prose = docstring_lines(tree)
    for node in ast.walk(tree):
        for text in _texts(node):
            if getattr(node, "lineno", 0) not in prose:
                yield getattr(node, "lineno", 0), text


def _texts(node: ast.AST) -> list[str]:
    match node:
        case ast.Constant(value=str(text)):
            return [repr(text)]
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.alias(name=name):
            return [name]
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.ImportFrom(module=str(name)):
            return [name]
    return []


def names_a_family(text: str) -> bool:
    return FAMILIES.search(NOT_FAMILIES.sub("", text)) is not None


def test_models_are_named_only_in_models() -> None:
    named = [
        f"{relative(path)}:{line} {text[:60]}"
        for path in python_files("octavo")
        if room_of(path) != "models" and not relative(path).startswith(tuple(FAMILY_NAMES_ALLOWED))
        for line, text in code_words(path)
        if names_a_family(text)
    ]
    assert named == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [("LlamaSpec", True), ("'smollm2-135m'", True), ("llama.cpp", False), ("'llama3'", False), ("alignment", False)],
)
def test_family_names_are_told_from_other_words(text: str, expected: bool) -> None:
    assert names_a_family(text) is expected


@pytest.mark.parametrize("room", rooms())
def test_every_room_says_what_it_owns(room: str) -> None:
    docstring = ast.get_docstring(parse(PACKAGE / room / "__init__.py")) or ""
    assert re.search(r"\bowns\b", docstring, re.IGNORECASE), f"octavo/{room}/__init__.py: say what the room owns"
    assert re.search(r"\bdoes not own\b", docstring, re.IGNORECASE), f"octavo/{room}/__init__.py: and what it does not"


def test_no_environment_variable_changes_behaviour() -> None:
    """The package neither reads nor sets its environment, but for how OpenMP's threads wait (`octavo/__init__.py`)."""
    uses = [
        f"{relative(path)}:{node.lineno}"
        for path in python_files("octavo")
        for node in ast.walk(parse(path))
        if (isinstance(node, ast.Attribute) and node.attr in {"environ", "environb", "getenv", "putenv"})
        or (isinstance(node, ast.ImportFrom) and {alias.name for alias in node.names} & {"environ", "getenv", "putenv"})
    ]
    allowed = [use for use in uses if use.startswith("octavo/__init__.py:")]
    assert len(allowed) == 1
    assert uses == allowed


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    return done.stdout.strip()


HEAVY = ("torch", "numpy", "fastapi", "gguf", "transformers", "tokenizers", "safetensors", "huggingface_hub")


def test_import_octavo_is_light() -> None:
    code = f"import sys, octavo, octavo.core.sampling_params; print([m for m in {HEAVY} if m in sys.modules])"
    assert python(code) == "[]"


def test_public_names_are_light_until_used() -> None:
    code = (
        "import sys, octavo; octavo.SamplingParams, octavo.Request, octavo.RequestOutput; print('torch' in sys.modules)"
    )
    assert python(code) == "False"


def test_help_is_quick_and_light() -> None:
    code = (
        "import sys\nfrom octavo.cli.main import main\n"
        "try: main(['--help'])\nexcept SystemExit as leaving: print('code', leaving.code)\n"
        f"print([m for m in {HEAVY} if m in sys.modules])"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    printed = python(code)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert printed.splitlines()[-2:] == ["code 0", "[]"]
    assert cpu_seconds < 1.5  # 0.4 s; torch alone would be as much as all of this. Not wall time: tests share cores


def test_no_registry_host_is_named() -> None:
    """Packages come from wherever pip is configured to look."""
    host = re.compile(rf"({'py' + 'pi'}|{'python' + 'hosted'})\.org", re.IGNORECASE)
    listed = subprocess.run(["git", "ls-files"], capture_output=True, text=True, cwd=ROOT, check=False).stdout.split(
        "\n"
    )
    named = [name for name in listed if name and (ROOT / name).is_file() and host.search(_text(ROOT / name))]
    assert named == []


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""
