"""Other packages' tests and layers, run on hipconv."""
