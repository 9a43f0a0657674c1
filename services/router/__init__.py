"""The router process: authenticates, tokenises, chooses a worker, streams. Stateless but for what it may lose."""
