"""The only package that speaks Redis: keys, functions, clients, the embedded server."""
