"""What the rig raises. Is not: `ccl_lab.errors`; the rig runs without the package, as with any Python."""

from __future__ import annotations


class RigError(RuntimeError):
    """The rig failed, or was asked for what it cannot do."""


class RigUnavailable(RigError):
    """This machine cannot have the rig; the message is the reason, and what to install."""
