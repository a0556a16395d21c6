"""Worked examples: they say what is to be done, and import nothing but `agentq`."""
