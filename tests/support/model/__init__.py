"""A stateful model of the functions: what any order of calls must leave behind."""
