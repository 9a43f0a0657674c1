"""Two tenants on a real model, end to end, in one command: `python -m services.demo`."""
