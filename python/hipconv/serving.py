"""The functions that inference servers call: causal conv1d over packed sequences (prefill) and decode steps, whose states live
in a pool.

Names, argument order and semantics are those of vLLM's, SGLang's and ATOM's functions of the same names, so that these can take
their place. A slot's window, the last ``width - 1`` inputs of a sequence, is in the slot's *first* columns (Dao-AILab's own
functions keep it in the last). The schedule is found on the device, in one launch for any mix of lengths: no call waits for the
device or copies from it, and a captured graph serves other lengths, slots and flags later.
"""

from .ops.serving.decode import causal_conv1d_update, causal_conv1d_update_split_qkv
from .ops.serving.fused_decode import fused_reshape_causal_conv1d_update_single_token
from .ops.serving.prefill import causal_conv1d_fn, causal_conv1d_split_qkv, compute_causal_conv1d_metadata

__all__ = [
    "causal_conv1d_fn",
    "causal_conv1d_split_qkv",
    "causal_conv1d_update",
    "causal_conv1d_update_split_qkv",
    "compute_causal_conv1d_metadata",
    "fused_reshape_causal_conv1d_update_single_token",
]
