"""x."""
def settings() -> None:
    """X."""
