"""Flows: the notation, the graph, and what follows when a step ends."""
