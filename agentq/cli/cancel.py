"""x."""
def cancel() -> None:
    """X."""
