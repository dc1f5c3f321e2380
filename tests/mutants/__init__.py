"""Small faults put into duly on purpose, each with the test that must notice it: ``python -m tests.mutants``."""
