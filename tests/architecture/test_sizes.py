"""No file over 500 lines, no function over 80: one file, one job. Python by its syntax tree, C++ by its braces."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("native", "protocol", "supervisor", "cluster", "scripts", "tests", "cmake")
SUFFIXES = {".py", ".h", ".cpp", ".cu", ".sh", ".cmake"}
MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 80

_NOT_A_FUNCTION = re.compile(r"^\s*(namespace|TEST_SUITE|class|struct|enum|union|extern)\b")


def files() -> Iterator[Path]:
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file() and (path.suffix in SUFFIXES or _is_script(path)) and "data" not in path.parts:
                yield path


def _is_script(path: Path) -> bool:
    if path.suffix != "" or path.parent.name != "scripts":
        return False
    with path.open("rb") as file:
        return file.read(2) == b"#!"


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.fixture(scope="module")
def texts() -> dict[Path, str]:
    return {path: path.read_text() for path in files()}


def test_files_are_short(texts: dict[Path, str]) -> None:
    assert len(texts) > 1000
    long = {name(path): n for path, text in texts.items() if (n := len(text.splitlines())) > MAX_FILE_LINES}
    assert not long, f"too many lines, split them by what their parts know: {long}"


def test_functions_are_short(texts: dict[Path, str]) -> None:
    n_functions, long = 0, []
    for path, text in texts.items():
        for function, n_lines in functions_of(path, text):
            n_functions += 1
            if n_lines > MAX_FUNCTION_LINES:
                long.append(f"{name(path)}: {function} has {n_lines} lines")
    assert n_functions > 5000
    assert not long, "\n".join(long)


def functions_of(path: Path, text: str) -> Iterator[tuple[str, int]]:
    if path.suffix == ".py":
        return python_functions(text)
    return cpp_functions(text) if path.suffix in {".h", ".cpp", ".cu"} else iter(())


def python_functions(text: str) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            yield node.name, node.end_lineno - node.lineno + 1


def cpp_functions(text: str) -> Iterator[tuple[str, int]]:
    """Blocks that begin with `…) … {` and stand in no other such block, with their length in lines."""
    code = _without_strings_and_comments(text)
    opened: list[tuple[str, int, bool]] = []  # what stands before the brace, its line, is it a function
    line = 1
    statement = ""
    statement_line = 1
    for character in code:
        if character == "\n":
            line += 1
        if character == "{":
            inside = any(is_function for _, _, is_function in opened)
            is_function = not inside and ")" in statement and _NOT_A_FUNCTION.match(statement) is None
            opened.append((" ".join(statement.split())[:60], statement_line, is_function))
            statement = ""
        elif character == "}":
            if opened:
                head, begin, is_function = opened.pop()
                if is_function:
                    yield head, line - begin + 1
            statement = ""
        elif character == ";":
            statement = ""
        else:
            if statement.strip() == "":
                statement_line = line
            statement += character


def _without_strings_and_comments(text: str) -> str:
    pattern = re.compile(
        r'R"([^(\s]*)\(.*?\)\1"|//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'|^\s*#[^\n]*',
        re.DOTALL | re.MULTILINE,
    )
    return pattern.sub(lambda match: "\n" * match[0].count("\n"), text)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("int f(int a) {\n  if (a) {\n  }\n  return 1;\n}\n", 5),
        ('namespace a {\nclass B {\n  void g() {\n    s = "}";  // }\n  }\n};\n}\n', 3),
        ("template <typename T>\nT f(\n    T a) {\n}\n", 4),
        ('TEST_SUITE("a") {\nTEST_CASE("b") {\n}\n}\n', 2),
    ],
)
def test_cpp_functions_are_found(code: str, expected: int) -> None:
    assert [n_lines for _, n_lines in cpp_functions(code)] == [expected]


def test_files_say_what_they_are(texts: dict[Path, str]) -> None:
    silent = [name(path) for path, text in texts.items() if path.suffix != ".cmake" and not says_what_it_is(path, text)]
    assert not silent, f"they do not begin with what they are and what they must not know: {silent}"


def says_what_it_is(path: Path, text: str) -> bool:
    if text.strip() == "" or path.name == "__main__.py":
        return True
    first = next((line for line in text.splitlines() if not line.startswith("#!")), "")
    implements_its_header = path.suffix in {".cpp", ".cu"} and path.with_suffix(".h").is_file()
    says = first.startswith(('"""', 'r"""', "#", "//", "/*")) and not first.startswith("#include")
    return says or implements_its_header
