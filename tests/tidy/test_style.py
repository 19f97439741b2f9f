"""Style that a reader relies on: short files, short functions, no machine's paths, generated files fresh.

Is not: a linter of taste (ruff is). Invariant: only files git would track are looked at.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MAX_FILE_LINES, MAX_FUNCTION_LINES = 500, 70
GENERATED = {
    "ccl_lab/ir/ops.py",
    "ccl_lab/trace/columns.py",
    "ccl_lab/config_keys.py",
    "native/include/ccl_lab/schema.hpp",
    "widgets/src/model/schema.ts",
    "widgets/package-lock.json",
    "LICENSE",
}
CODE = {".py", ".pyi", ".cpp", ".hpp", ".h", ".cu", ".ts", ".mjs", ".sh", ".cmake", ".toml", ".css", ".md"}
SKIPPED_FOLDERS = (
    "build/",
    "out/",
    "ccl_lab/widgets/static/",
    "tests/golden/",
    "labs/data/",
    "bench/records/",
    "docs/reference/",
)

# Spelled in pieces so that this file passes its own test.
FORBIDDEN = [
    r"(?<![\w.])/wo" + r"rk/",
    r"(?<![\w.])/ro" + r"ot/",
    r"(?<![\w.])/ho" + r"me/[a-z]",
    r"\bsha" + r"red/(DESIGN|ALGORITHMS|ANCHORS|JUPYTER|rig|traces|bench|validation)",
    "SEA" + r"MS\.md",
    "pypi"
    + r"\.org|files\.python"
    + r"hosted|registry\.np"
    + r"mjs|art"
    + r"ifactory|deb\.deb"
    + r"ian\.org",
]


def tracked() -> list[str]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if found.returncode:
        pytest.fail(f"git ls-files failed: {found.stderr}")
    return sorted(name for name in set(found.stdout.splitlines()) if (ROOT / name).is_file())


def own_code() -> list[str]:
    return [
        name
        for name in tracked()
        if Path(name).suffix in CODE and name not in GENERATED and not name.startswith(SKIPPED_FOLDERS)
    ]


def python_functions(text: str) -> list[tuple[str, int, int]]:
    """(name, first line, number of lines) of every function; a docstring does not count."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            doc = node.body[0] if ast.get_docstring(node) is not None else None
            doc_lines = (doc.end_lineno or 0) - doc.lineno + 1 if doc else 0
            found.append(
                (node.name, node.lineno, (node.end_lineno or node.lineno) - node.lineno + 1 - doc_lines)
            )
    return found


def blank_strings(text: str, quotes: str) -> str:
    """`text` with comments and string contents blanked, line breaks kept."""
    literal = "|".join(
        rf"{q}(?:\\.|[^{q}\\])*{q}" if q == "`" else rf"{q}(?:\\.|[^{q}\\\n])*{q}" for q in quotes
    )
    pattern = re.compile(rf"//[^\n]*|/\*.*?\*/|R\"\((?:.*?)\)\"|{literal}", re.DOTALL)
    return pattern.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


NOT_FUNCTION = re.compile(r"\b(namespace|class|struct|enum|union|interface|extern|module)\b[^()]*$")


def brace_functions(text: str, quotes: str) -> list[tuple[str, int, int]]:
    """(header, first line, number of lines) of outermost blocks that look like functions: `...)...{ ... }`."""
    clean = blank_strings(text, quotes)
    found: list[tuple[str, int, int]] = []
    stack: list[tuple[str, int, bool]] = []
    header_begin = 0
    for at, char in enumerate(clean):
        if char == "{":
            header = clean[header_begin:at].strip()
            inside = any(is_function for _, _, is_function in stack)
            is_function = not inside and "(" in header and not NOT_FUNCTION.search(header)
            first = clean.count(
                "\n", 0, header_begin + len(clean[header_begin:at]) - len(clean[header_begin:at].lstrip())
            )
            stack.append((" ".join(header.split())[-60:], first + 1, is_function))
        elif char == "}" and stack:
            header, first, is_function = stack.pop()
            if is_function:
                found.append((header, first, clean.count("\n", 0, at) + 2 - first))
        if char in "{};":
            header_begin = at + 1
    return found


def functions_of(name: str, text: str) -> list[tuple[str, int, int]]:
    suffix = Path(name).suffix
    if suffix == ".py":
        return python_functions(text)
    if suffix in {".cpp", ".hpp", ".h", ".cu"}:
        return brace_functions(text, "\"'")
    if suffix in {".ts", ".mjs"}:
        return brace_functions(text, "\"'`")
    return []


def test_files_are_short() -> None:
    long = {
        name: lines
        for name in own_code()
        if (lines := len((ROOT / name).read_text().splitlines())) > MAX_FILE_LINES
    }
    assert not long, f"files over {MAX_FILE_LINES} lines: {long}"


def test_functions_are_short() -> None:
    long = []
    for name in own_code():
        for function, line, lines in functions_of(name, (ROOT / name).read_text()):
            if lines > MAX_FUNCTION_LINES:
                long.append(f"{name}:{line} {function} has {lines} lines")
    assert not long, f"functions over {MAX_FUNCTION_LINES} lines:\n" + "\n".join(long)


def test_brace_scan_sees_long_functions() -> None:
    body = "\n".join("  x += 1;" for _ in range(80))
    cpp = f"namespace a {{\nstruct S {{\n  int f(int x) const {{\n{body}\n  }}\n}};\n}}\n"
    assert [(lines, first) for _, first, lines in brace_functions(cpp, "\"'")] == [(82, 3)]
    ts = f"export function f(x: number): void {{\n{body}\n}}\nconst s = `${{x}} {{`;\n"
    assert [lines for _, _, lines in brace_functions(ts, "\"'`")] == [82]


def test_nothing_names_a_machine_or_registry() -> None:
    pattern = re.compile("|".join(FORBIDDEN))
    text_suffixes = CODE | {".yml", ".yaml", ".txt", ".ipynb", ".json", ".lock", ""}
    hits = []
    for name in tracked():
        if Path(name).suffix not in text_suffixes or name == "widgets/package-lock.json":
            continue
        for number, line in enumerate((ROOT / name).read_text(errors="replace").splitlines(), 1):
            if found := pattern.search(line):
                hits.append(f"{name}:{number}: {found[0]}")
    assert not hits, "\n".join(hits)


def test_lock_file_names_only_the_public_registry() -> None:
    path = ROOT / "widgets/package-lock.json"
    hosts = set(re.findall(r'"resolved": "(https?://[^/]+)/', path.read_text())) if path.exists() else set()
    assert hosts <= {"https://registry.np" + "mjs.org"}, hosts


def test_generated_files_are_fresh() -> None:
    command = [sys.executable, "-m", "ccl_lab.schema.generate", "--check"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr


def test_ruff_is_clean() -> None:
    found = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "."], cwd=ROOT, capture_output=True, text=True
    )
    assert found.returncode == 0, found.stdout


@pytest.mark.parametrize(
    "name", [n for n in own_code() if n.startswith(("ccl_lab/", "bench/")) and n.endswith(".py")]
)
def test_every_module_says_what_it_is(name: str) -> None:
    text = (ROOT / name).read_text()
    assert ast.get_docstring(ast.parse(text)), f"{name} has no header docstring"
