"""Deadlines, on the broker's clock."""
