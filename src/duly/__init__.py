"""duly: every occurrence that falls due gets exactly one verdict."""
