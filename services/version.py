"""The version of the installed product."""

from __future__ import annotations

from importlib import metadata

VERSION = metadata.version("stemcache")
