"""Dao-AILab's causal-conv1d as hipconv serves it: this distribution takes its name,
so that layers that import it run on hipconv.
"""

from hipconv.drop_in import __version__, causal_conv1d_fn, causal_conv1d_update

__all__ = ["__version__", "causal_conv1d_fn", "causal_conv1d_update"]
