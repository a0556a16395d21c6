"""x."""
def submit() -> None:
    """X."""
