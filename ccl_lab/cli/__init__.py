"""`ccl-lab`: the lab on the command line.

Is: one subcommand a module, each a thin composition of public names. Is not: logic that Python users cannot reach.
Invariants: a failure is one clear message on stderr, exit code 2 for a wrong call and 1 for everything else, and a
traceback only with CCL_LAB_LOG=debug; with --json stdout holds exactly one JSON object.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Sequence

from .. import config
from ..errors import CclError, UsageError
from . import bench, doctor, lab, predict, run, trace


class Parser(argparse.ArgumentParser):
    """argparse with its error in one line."""

    def error(self, message: str) -> None:  # type: ignore[override]
        print(f"{self.prog}: {message} (see {self.prog} --help)", file=sys.stderr)
        raise SystemExit(2)


def parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    top = Parser(
        prog="ccl-lab", description="A laboratory for collective communication around a real engine."
    )
    top.add_argument("--version", action="version", version=_version())
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=Parser)
    for module in (lab, run, predict, trace, bench, doctor):
        module.add_commands(commands)
    return top


def _version() -> str:
    from .. import __version__

    return f"ccl-lab {__version__}"


def _debugging() -> bool:
    try:
        return config.get("log") == "debug"
    except CclError:
        return False


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code."""
    top = parser()
    parsed, further = top.parse_known_args(arguments)
    if further and parsed.command not in ("lab", "bench"):
        top.error(f"unrecognized arguments: {' '.join(further)}")
    parsed.further = further
    try:
        config.check_environment()
        return int(parsed.run(parsed) or 0)
    except KeyboardInterrupt:
        print("ccl-lab: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of our output left (say `head`): the interpreter must not complain when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (CclError, OSError) as error:
        if _debugging():
            traceback.print_exc()
        print(f"ccl-lab {parsed.command}: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
