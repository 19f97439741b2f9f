"""`lab`: JupyterLab on the tour.

Is not: a server of ours; every further argument goes to JupyterLab as it is.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from ..errors import UsageError
from .arguments import need

LABS = (Path(__file__).resolve().parents[2] / "labs", Path(__file__).resolve().parents[1] / "labs")


def add_commands(commands: Any) -> None:
    lab = commands.add_parser(
        "lab",
        help="open JupyterLab on the tour",
        epilog="Further arguments go to JupyterLab: ccl-lab lab --no-browser --port 8899",
    )
    lab.add_argument("--notebook", default="00_tour.ipynb", help="which lab to open (default: %(default)s)")
    lab.set_defaults(run=run_lab)


def labs_folder() -> Path:
    """The folder of notebooks: of the clone, or of the installed package."""
    for folder in LABS:
        if folder.is_dir():
            return folder
    raise UsageError("the notebooks are not beside the package: clone the project and run `make lab` there.")


def command(notebook: str, further: list[str]) -> list[str]:
    """What starts JupyterLab."""
    folder = labs_folder()
    if not (folder / notebook).exists():
        known = ", ".join(sorted(str(path.relative_to(folder)) for path in folder.rglob("*.ipynb")))
        raise UsageError(f"there is no lab {notebook!r}. Known: {known}.")
    # Jupyter refuses to serve root, which is the only user of many containers.
    root = ["--allow-root"] if os.geteuid() == 0 and "--allow-root" not in further else []
    # Notebooks of a clone link to its pages, which JupyterLab opens only under its root.
    root_dir = folder.parent if (folder.parent / "docs").is_dir() else folder
    # The URL, not the file: it is printed, so that a person without a local browser lands on the notebook too.
    opened = (folder / notebook).relative_to(root_dir).as_posix()
    where = [f"--ServerApp.root_dir={root_dir}", f"--LabApp.default_url=/lab/tree/{opened}"]
    # A laboratory asks nobody on the network for news or versions, and nothing lies over the first notebook.
    quiet = [f"--LabApp.app_settings_dir={Path(__file__).parent / 'lab_settings'}"]
    return [sys.executable, "-m", "jupyterlab", *where, *quiet, *root, *further]


def run_lab(arguments: argparse.Namespace) -> int:
    need(importlib.util.find_spec("jupyterlab") is not None, "JupyterLab", "pip install 'ccl-lab[lab]'")
    return subprocess.call(command(arguments.notebook, arguments.further))
