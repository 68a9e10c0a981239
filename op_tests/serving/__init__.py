"""Prefill and decode, with states in a cache."""
