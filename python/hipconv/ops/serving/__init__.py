"""The causal conv1d of inference servers: prefill and decode, with states in a pool."""
