"""The commands: each file parses and prints, nothing more."""
