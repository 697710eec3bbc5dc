"""Real long texts: the licences of the packages that are installed here."""

from __future__ import annotations

from functools import cache
from importlib import metadata
from pathlib import Path

PACKAGES = ["aiohttp", "click", "jinja2", "msgspec", "structlog", "tokenizers", "prometheus-client", "torch"]


@cache
def licences() -> str:
    """All the licence texts, one after another."""
    texts = []
    for package in PACKAGES:
        for file in metadata.files(package) or []:
            if "license" in file.name.lower() and file.suffix in ("", ".txt", ".md", ".rst"):
                texts.append(Path(str(file.locate())).read_text(errors="replace"))
    joined = "\n\n".join(texts)
    assert len(joined) > 30_000, "the installed packages have too little licence text"
    return joined


@cache
def plain_text() -> str:
    """The same in ASCII: one character, one byte."""
    return licences().encode("ascii", "replace").decode()
