"""Whether there is a torch that the backend can use.

Is: one check with an error that says what to install. Is not: an import of torch for anybody else.
"""

from __future__ import annotations

import importlib
import re
from typing import Any

from ..errors import UnsupportedError

OLDEST = (2, 4)


def need_torch() -> Any:
    """The module torch. Raises UnsupportedError where it is missing, too old, or without torch.distributed."""
    try:
        torch = importlib.import_module("torch")
    except ImportError as error:
        raise UnsupportedError(
            f'the torch backend needs torch, which cannot be imported ({error}): pip install "ccl-lab[torch]".'
        ) from None
    found = tuple(int(word) for word in re.findall(r"\d+", str(torch.__version__))[:2])
    if found < OLDEST:
        raise UnsupportedError(
            f"the torch backend needs torch >= {'.'.join(map(str, OLDEST))}, found {torch.__version__}: "
            'pip install "ccl-lab[torch]".'
        )
    if not importlib.import_module("torch.distributed").is_available():
        raise UnsupportedError(
            f"this torch ({torch.__version__}) was built without torch.distributed: install a build that has it."
        )
    return torch
