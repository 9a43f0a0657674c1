"""A browser, and servers with scripted answers."""

from tests.support.browser import browser
from tests.support.scripted_servers import admin

__all__ = ["admin", "browser"]
