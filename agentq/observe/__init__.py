"""What a process says of itself; imports nothing of what it reports on."""
