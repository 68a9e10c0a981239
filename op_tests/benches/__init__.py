"""Speed: each file times one family, and its test runs it as the command that it is."""
