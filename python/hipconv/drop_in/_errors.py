"""Bad input raises here what it raises in Dao-AILab's package, so that code that catches it still does; the text is hipconv's own."""

from __future__ import annotations

from ..arguments import SILU, describe


class InvalidValue(ValueError, RuntimeError):
    """A wrong shape, stride or device: RuntimeError there, ValueError everywhere else in hipconv."""


class InvalidType(TypeError, RuntimeError):
    """A wrong dtype: RuntimeError there, TypeError everywhere else in hipconv."""


def as_the_peers(error: Exception) -> Exception:
    """The error to raise instead."""
    if isinstance(error, TypeError):
        return InvalidType(*error.args)
    return InvalidValue(*error.args) if isinstance(error, ValueError) else error


def silu_of(activation: str | None) -> bool:
    """What `activation` means; NotImplementedError, as there, if nothing."""
    try:
        return SILU[activation]
    except (KeyError, TypeError):  # what cannot be hashed is no key either
        raise NotImplementedError(f"activation: got {describe(activation)}, expected None, 'silu' or 'swish'") from None
