"""Bad input raises here what it raises in Dao-AILab's package, so that code that catches it still does; the text is hipconv's own."""

from __future__ import annotations


class InvalidValue(ValueError, RuntimeError):
    """A wrong shape, stride or device: RuntimeError there, ValueError everywhere else in hipconv."""


class InvalidType(TypeError, RuntimeError):
    """A wrong dtype: RuntimeError there, TypeError everywhere else in hipconv."""


def as_the_peers(error: Exception) -> Exception:
    """The error to raise instead."""
    if isinstance(error, TypeError):
        return InvalidType(*error.args)
    return InvalidValue(*error.args) if isinstance(error, ValueError) else error
