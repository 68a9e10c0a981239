"""hipconv on Hugging Face's kernel hub: the folder that a repository there is,
and the layers that transformers takes from it.
"""
