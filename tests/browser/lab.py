"""A real JupyterLab in headless Chromium: one isolated server, notebooks in a copy.

Is: start, open, run all, wait, stop by process id. Is not: galata. Waits on outputs, never on text alone (it matches the source).
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
NO_NEWS = {"fetchNews": "false", "checkForUpdates": False}


def notebook(cells: list[str]) -> dict[str, Any]:
    """A notebook with a kernelspec (without one a dialog would block)."""
    made = [
        {
            "cell_type": "code",
            "id": f"cell{i}",
            "source": text,
            "metadata": {},
            "outputs": [],
            "execution_count": None,
        }
        for i, text in enumerate(cells)
    ]
    spec = {
        "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"},
        "language_info": {"name": "python"},
    }
    return {"cells": made, "metadata": spec, "nbformat": 4, "nbformat_minor": 5}


class Lab:
    """A server with root `folder`; `open` shows a notebook in a page."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self.port, self.token = folder / "work", port, secrets.token_hex(16)
        self.folder.mkdir(parents=True)
        settings = folder / "settings" / "@jupyterlab" / "apputils-extension"
        settings.mkdir(parents=True)
        (settings / "notification.jupyterlab-settings").write_text(json.dumps(NO_NEWS))
        names = {"JUPYTER_CONFIG_DIR": "config", "JUPYTER_DATA_DIR": "data", "JUPYTER_RUNTIME_DIR": "runtime", "IPYTHONDIR": "ipython",
                 "JUPYTERLAB_SETTINGS_DIR": "settings", "JUPYTERLAB_WORKSPACES_DIR": "workspaces"}  # fmt: skip
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        env = {**os.environ, **{name: str(folder / sub) for name, sub in names.items()}, "PYTHONPATH": path}
        command = [sys.executable, "-m", "jupyter", "lab", "--no-browser", "--allow-root", f"--port={self.port}", "--ip=127.0.0.1",
                   "--LabApp.expose_app_in_browser=True", f"--IdentityProvider.token={self.token}", f"--ServerApp.root_dir={self.folder}",
                   "--ServerApp.port_retries=0"]  # fmt: skip
        self.log = (folder / "server.log").open("w")
        self.process = subprocess.Popen(
            command, env=env, cwd=self.folder, stdout=self.log, stderr=subprocess.STDOUT
        )
        self._wait_ready(folder)

    def _wait_ready(self, folder: Path, timeout: float = 60.0) -> None:
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            try:
                urllib.request.urlopen(
                    f"http://127.0.0.1:{self.port}/api/status?token={self.token}", timeout=2
                )
                return
            except OSError:
                time.sleep(0.3)
        raise TimeoutError((folder / "server.log").read_text()[-2000:])

    def write(self, name: str, cells: list[str]) -> None:
        (self.folder / name).write_text(json.dumps(notebook(cells)))

    def open(self, page: Any, name: str) -> None:
        """Opens a notebook and waits until its kernel is idle."""
        page.goto(f"http://127.0.0.1:{self.port}/lab/tree/{name}?token={self.token}&reset")
        page.locator(".jp-Notebook .jp-Cell").first.wait_for(timeout=60_000)
        self.wait_idle(page)

    def wait_idle(self, page: Any, timeout: float = 60.0) -> None:
        page.wait_for_function(
            "() => window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel?.status === 'idle'",
            timeout=timeout * 1000,
        )

    def outputs(self, page: Any) -> str:
        """Text of all outputs, from the notebook's model: cells out of sight are not in the page."""
        return page.evaluate(
            "() => window.jupyterapp.shell.currentWidget.content.model.sharedModel.cells"
            ".map((c) => JSON.stringify(c.toJSON().outputs || [])).join('\\n')"
        )

    def wait_output(self, page: Any, text: str, timeout: float = 60.0) -> str:
        """Waits until some output holds `text`; returns all outputs."""
        end = time.monotonic() + timeout
        while text not in (found := self.outputs(page)):
            if time.monotonic() > end:
                raise TimeoutError(f"no output with {text!r} in {timeout} s: {found[-2000:]}")
            page.wait_for_timeout(100)
        return found

    def run_all(self, page: Any) -> None:
        """Run All, without waiting for the end."""
        page.locator(".jp-Notebook .jp-Cell").first.click()
        page.evaluate("() => { window.jupyterapp.commands.execute('notebook:run-all-cells'); }")

    def close(self) -> None:
        """Kernels first, by the server's own interface; then the server, by process id."""
        try:
            base = f"http://127.0.0.1:{self.port}/api/"
            kernels = json.load(urllib.request.urlopen(f"{base}kernels?token={self.token}", timeout=5))
            for kernel in kernels:
                request = urllib.request.Request(
                    f"{base}kernels/{kernel['id']}?token={self.token}", method="DELETE"
                )
                urllib.request.urlopen(request, timeout=10)
        except OSError:
            pass
        self.process.terminate()
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(5)
        self.log.close()
