"""Calls to models over the OpenAI-compatible API, and the batching of those that gain from it."""
