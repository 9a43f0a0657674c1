"""Starts a whole system and keeps it running: Redis, Ray, workers, a router. Never on the path of a request."""
