"""Logging: one line a record, for people or for programs.

It knows structlog and the standard library's logging, whose records (aiohttp's, asyncio's) take the same way. Output
goes to standard error. It does not know what is logged; `core` never logs.
"""

from __future__ import annotations

import logging
import sys
from typing import Any, Literal, TextIO

import structlog


def set_up_logging(level: str, form: Literal["console", "json"], stream: TextIO | None = None, **always: Any) -> None:
    """Once a program. `always`: fields of every record, such as the node's name."""
    stream = stream or sys.stderr
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _with(always),
    ]
    if form == "json":
        last: list[Any] = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    else:
        # Plain tracebacks: pretty ones print local variables, prompts and secrets among them, and take half a second.
        plain = structlog.dev.plain_traceback
        last = [structlog.dev.ConsoleRenderer(colors=stream.isatty(), exception_formatter=plain)]
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared, processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last]
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.captureWarnings(True)


def _with(always: dict[str, Any]) -> Any:
    def add(_logger: Any, _method: str, record: Any) -> Any:
        for key, value in always.items():
            record.setdefault(key, value)
        return record

    return add
