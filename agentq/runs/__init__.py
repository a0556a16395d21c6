"""One run as one thing: its record, its events, its handle."""
