"""The machine a process runs on: its cores, its allocator, its limits and what it uses of them.

Linux is the platform. Elsewhere every module imports and says what it cannot do.
"""
