"""What tests of real processes share."""
