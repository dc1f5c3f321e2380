"""Measurements of duly, each with its reference in the same run: ``python -m bench``."""
