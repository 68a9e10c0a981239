"""The causal depthwise conv1d of whole rows, forward and backward."""
