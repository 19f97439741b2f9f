"""The project holds together: environments agree, notebooks are clean, links lead somewhere, layers hold."""

from __future__ import annotations

import ast
import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml

import ccl_lab
from ccl_lab import errors

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
CONDA_ONLY = {"python", "cxx-compiler", "make", "pip"}
NOT_IN_CONDA = {"tomli"}  # only Python 3.10 needs it
WORKERS = ("planner", "verifier", "simulator", "widgets")
COMPOSERS = {"__init__.py", "world.py", "elastic_world.py", "communicator.py"}

PUBLIC = {
    "AbortedError", "BoundsError", "Buffer", "Builder", "CclError", "Collective", "Communicator", "ConfigError",
    "ConnectError", "ContributionError", "DType", "DeadlockError", "DecodeError", "DtypeError", "Emulated", "FaultScript", "Kind",
    "LinkDownError", "Matmul",
    "OpTimeout", "PeerLostError", "Proof", "RaceError", "RedOp", "RegistrationError", "Run", "Schedule", "ScheduleError",
    "ShapeError", "Summary", "Sweep", "Topology", "Trace", "TransportError", "UnsupportedError", "UsageError", "Work", "World",
    "__version__", "discover", "empty", "errors", "export_html", "init", "interpret", "plan", "simulate", "sweep",
    "verify",
}  # fmt: skip


def names_and_ranges(requirements: list[str]) -> dict[str, str]:
    """{"ml-dtypes": ">=0.4"}; conda's underscores and PyPI's dashes are one name."""
    found = {}
    for text in requirements:
        match = re.match(r"([A-Za-z0-9_.-]+?)(?:\[.*\])?\s*((?:[<>=!~].*?)?)\s*(?:;.*)?$", text)
        assert match, text
        found[match[1].lower().replace("_", "-")] = match[2]
    return found


def test_environment_agrees_with_pyproject() -> None:
    project = PYPROJECT["project"]
    extras = project["optional-dependencies"]
    wanted = names_and_ranges(
        [
            *project["dependencies"],
            *extras["lab"],
            *extras["test"],
            *extras["dev"],
            *PYPROJECT["build-system"]["requires"],
        ]
        + [item for item in PYPROJECT["dependency-groups"]["build"] if isinstance(item, str)]
    )
    rows = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    conda = [row for row in rows if isinstance(row, str)]
    nested = next(row["pip"] for row in rows if isinstance(row, dict))
    found = names_and_ranges([*conda, *nested])
    assert found.pop("python") == project["requires-python"]
    assert {n: r for n, r in found.items() if n not in CONDA_ONLY} == {
        n: r for n, r in wanted.items() if n not in NOT_IN_CONDA
    }


def test_package_is_typed() -> None:
    assert (ROOT / "ccl_lab/py.typed").exists()


def test_public_face() -> None:
    assert set(ccl_lab.__all__) == PUBLIC
    assert set(ccl_lab.__all__) <= set(dir(ccl_lab))


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_public_names_load(name: str) -> None:
    assert getattr(ccl_lab, name) is not None


def test_unknown_public_name_suggests() -> None:
    with pytest.raises(AttributeError, match="simulate"):
        _ = ccl_lab.simulat


def test_every_public_function_is_documented() -> None:
    bare = [name for name in PUBLIC - {"__version__"} if not (getattr(ccl_lab, name).__doc__ or "").strip()]
    assert not bare


LEAVES = sorted(name for name, cls in errors.all_errors().items() if not cls.__subclasses__())


@pytest.mark.parametrize("name", LEAVES)
def test_every_error_has_a_test_that_reads_its_message(name: str) -> None:
    """Somewhere in tests/: `pytest.raises(Name, match=...)`, or `rejected(schedule, Name, "words")`."""
    assert _raised(name), f"no test has pytest.raises({name}, match=...)"


def _raised(name: str) -> bool:
    with_match = rf"raises\(\s*\(?[^)]*?\b{name}\b[^)]*?match="
    with_words = rf"rejected\([^\n]*\b{name}, [\"*]"  # tests/unit/test_verifier.py compares several phrases
    pattern = re.compile(f"{with_match}|{with_words}", re.DOTALL)
    return any(pattern.search(path.read_text()) for path in (ROOT / "tests").rglob("*.py"))


def test_import_contracts() -> None:
    from importlinter.cli import lint_imports

    assert lint_imports(config_filename=str(ROOT / "pyproject.toml"), no_cache=True) == 0


def _imports(path: Path) -> set[str]:
    """Dotted names a module imports, relative to ccl_lab."""
    depth = len(path.relative_to(ROOT / "ccl_lab").parts)
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            base = (node.module or "").removeprefix("ccl_lab.")
            if node.level == depth or (node.level == 0 and (node.module or "").startswith("ccl_lab")):
                found |= {base} if base and base != "ccl_lab" else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {
                alias.name.removeprefix("ccl_lab.")
                for alias in node.names
                if alias.name.startswith("ccl_lab.")
            }
    return {name.split(".")[0] for name in found}


@pytest.mark.parametrize("path", sorted((ROOT / "ccl_lab/engine").glob("*.py")), ids=lambda path: path.name)
def test_only_world_and_communicator_compose_the_workers(path: Path) -> None:
    if path.name not in COMPOSERS:
        assert not _imports(path) & set(WORKERS), f"{path.name} imports a worker"


def test_only_engine_simulator_and_discover_import_the_core() -> None:
    pattern = re.compile(
        r"^\s*(from .* import .*\b_core\b|from .*\b_core\b import|import ccl_lab\._core)", re.MULTILINE
    )
    users = {
        str(p.relative_to(ROOT / "ccl_lab"))
        for p in (ROOT / "ccl_lab").rglob("*.py")
        if pattern.search(p.read_text())
    }
    assert all(user.startswith(("engine/", "simulator/")) or user == "topo/discover.py" for user in users), (
        users
    )


def test_only_config_reads_the_environment() -> None:
    pattern = re.compile(r"\bos\.(environ|getenv)\b|from os import .*\b(environ|getenv)\b")
    readers = {
        str(p.relative_to(ROOT)) for p in (ROOT / "ccl_lab").rglob("*.py") if pattern.search(p.read_text())
    }
    assert readers <= {"ccl_lab/config.py"}, readers


def test_only_the_torch_backend_and_overlap_import_torch() -> None:
    pattern = re.compile(r"^\s*(import torch\b|from torch\b)", re.MULTILINE)
    users = {str(p.relative_to(ROOT / "ccl_lab")) for p in (ROOT / "ccl_lab").rglob("*.py") if pattern.search(p.read_text())}
    assert all(user.startswith(("torch_backend/", "overlap/")) for user in users), users


def test_at_most_25_environment_keys() -> None:
    from ccl_lab.config_keys import KEYS

    assert len(KEYS) <= 25


# But for the copies that JupyterLab keeps beside them once they were saved.
NOTEBOOKS = sorted(path for path in (ROOT / "labs").rglob("*.ipynb") if path.parent.name != ".ipynb_checkpoints")


def test_there_are_notebooks() -> None:
    assert {"00_tour.ipynb", "01_alpha_beta.ipynb", "02_ring.ipynb", "17_one_node.ipynb", "01_ring_all_gather.ipynb"} <= {
        p.name for p in NOTEBOOKS
    }


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_notebook_is_clean(path: Path) -> None:
    notebook = json.loads(path.read_text())
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert not cell["outputs"] and cell["execution_count"] is None, f"{path.name} holds outputs"


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *NOTEBOOKS]


def words_of(page: Path) -> str:
    """What a reader sees as text: a page, or the cells of a notebook that are not code."""
    if page.suffix != ".ipynb":
        return page.read_text()
    cells = json.loads(page.read_text())["cells"]
    return "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", words_of(page), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'src="([^"]+)"', text):
        if not re.match(r"[a-z]+:", target):
            assert (page.parent / target.split("#")[0]).exists() or target.startswith("#"), (
                f"{page.name} -> {target}"
            )


def test_decision_records_are_numbered_and_listed() -> None:
    records = sorted(path.name for path in (ROOT / "docs/adr").glob("[0-9]*.md"))
    assert [int(name[:4]) for name in records] == list(range(1, len(records) + 1))
    assert all(name in (ROOT / "docs/architecture.md").read_text() for name in records)


def test_sources_are_tracked_not_ignored() -> None:
    """The bundle is part of the wheel, which leaves out what git ignores."""
    static = [str(p.relative_to(ROOT)) for p in (ROOT / "ccl_lab/widgets/static").glob("*") if p.is_file()]
    ignored = (
        subprocess.run(["git", "check-ignore", *static], cwd=ROOT, capture_output=True, text=True)
        if static
        else None
    )
    assert ignored is None or not ignored.stdout
