"""The causal convolution of whole sequences: forward, backward, their plans and large tensors."""
