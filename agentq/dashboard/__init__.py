"""Flower over a cell, with our pages; needs the extra `dashboard`."""
