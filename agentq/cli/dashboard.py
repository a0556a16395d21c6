"""x."""
def dashboard() -> None:
    """X."""
