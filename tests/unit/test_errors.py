"""The tree of errors: its shape, what it carries to other ranks, suggestions."""

from __future__ import annotations

import pytest

from ccl_lab import errors


def test_the_tree() -> None:
    found = errors.all_errors()
    assert set(found["CclError"].__subclasses__()) == {
        errors.UsageError,
        errors.ScheduleError,
        errors.TransportError,
        errors.OpTimeout,
        errors.AbortedError,
        errors.UnsupportedError,
    }
    assert issubclass(errors.OpTimeout, TimeoutError) and issubclass(errors.UsageError, ValueError)
    assert issubclass(errors.DtypeError, TypeError) and issubclass(
        errors.UnsupportedError, NotImplementedError
    )


@pytest.mark.parametrize("name", sorted(errors.all_errors()))
def test_an_error_crosses_ranks_unchanged(name: str) -> None:
    error = errors.all_errors()[name]("rank 3, channel 1, op 17: gone", rank=3, nic=2, op_id=17)
    again = errors.from_wire(error.to_wire())
    assert type(again) is type(error)
    assert (str(again), again.rank, again.nic, again.op_id) == (str(error), 3, 2, 17)


def test_an_unknown_error_from_elsewhere_is_a_cclerror() -> None:
    error = errors.from_wire({"type": "os.system", "message": "x"})
    assert type(error) is errors.CclError and error.rank == -1


def test_suggestions() -> None:
    assert errors.suggest("rign", ["ring", "tree"]) == " Did you mean 'ring'?"
    assert errors.suggest("zzz", ["ring", "direct"]) == " Known: direct, ring."


def test_missing_program_names_how_to_get_it() -> None:
    from ccl_lab.cli.arguments import need

    with pytest.raises(errors.UnsupportedError, match="JupyterLab is not installed: pip install"):
        need(False, "JupyterLab", "pip install 'ccl-lab[lab]'")
