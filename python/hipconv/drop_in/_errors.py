"""Bad input raises here what it raises in Dao-AILab's package, so that code that catches it still does; the text is hipconv's own."""

from __future__ import annotations


class InvalidValue(ValueError, RuntimeError):
    """A wrong shape, stride or device: RuntimeError there, ValueError everywhere else in hipconv."""


class InvalidType(TypeError, RuntimeError):
    """A wrong dtype: RuntimeError there, TypeError everywhere else in hipconv."""


def as_the_peers(error: TypeError | ValueError) -> RuntimeError:
    """The error to raise instead."""
    return InvalidType(*error.args) if isinstance(error, TypeError) else InvalidValue(*error.args)


def silu_of(activation: str | None) -> bool:
    """What `activation` means; NotImplementedError, as there, if nothing."""
    if activation is None:
        return False
    if activation in ("silu", "swish"):
        return True
    raise NotImplementedError(f"activation: got {activation!r}, expected None, 'silu' or 'swish'")
