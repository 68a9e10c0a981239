"""hipconv as its users call it: layers, models, torch's transforms and compiler, the drop-in, the examples."""
