"""Tenants, their keys, secrets and epochs: durable control data, and the router's view of it."""
