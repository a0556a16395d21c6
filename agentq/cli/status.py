"""x."""
def status() -> None:
    """X."""
