"""x."""
def bench() -> None:
    """X."""
