"""Servers with scripted answers."""

from tests.support.scripted_servers import admin, api

__all__ = ["admin", "api"]
