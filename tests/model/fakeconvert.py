"""Stands in for the converter: writes a config.json; the source's text tells it what to do wrong."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def main() -> None:
    *flags, source, out = sys.argv[1:]
    text = "" if "--build" in flags else Path(source).read_text()
    with Path(os.environ["FAKE_CALLS"]).open("a") as calls:
        calls.write(f"{' '.join(flags)} {text}\n")
    if "break" in text and not os.environ.get("FAKE_MENDED"):
        print("Traceback: ...\nRuntimeError: cannot read this")
        sys.exit(1)
    Path(out).mkdir()
    (Path(out) / "config.json").write_text("{}")
    (Path(out) / "weights").write_text(text)


if __name__ == "__main__":
    main()
