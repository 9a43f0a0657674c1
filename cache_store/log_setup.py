"""How a process logs: one JSON object a line, on standard output. Called once, by the process's entry point.

Tracebacks are plain: they never show the values of local variables, which may be prompts or keys.
"""

from __future__ import annotations

import logging

import structlog


def log_as_json() -> None:
    """Events with fields, level and UTC time."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        cache_logger_on_first_use=True,
    )
