"""Certificates for tests and small set-ups."""
