"""Status codes of the native engine and the error classes they stand for.

Is: the way back from an error class to a code, for aborts that travel through shared memory. Invariant: agrees with
native/src/base/status.hpp; the native module is asked, nothing is repeated here.
"""

from __future__ import annotations

from .. import _core
from ..errors import CclError


def code_of(error: CclError) -> int:
    """The native status code that becomes the class of `error` again; other classes become AbortedError."""
    codes = _core.status_codes()
    return int(codes.get(type(error).__name__, codes["AbortedError"]))
