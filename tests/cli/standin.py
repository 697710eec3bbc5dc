"""A program that stands in for a gateway or a node: answers /health, and misbehaves when told to.

standin.py PORT [--exit CODE] [--stubborn] [--deaf] [--pid-file FILE]
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from prfaas.runtime import lifeline


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("--exit", type=int, help="say so and exit at once")
    parser.add_argument("--stubborn", action="store_true", help="ignore SIGTERM")
    parser.add_argument("--deaf", action="store_true", help="never listen")
    parser.add_argument("--pid-file", type=Path)
    options = parser.parse_args()
    lifeline.watch(os.environ)
    print(f"stand-in {os.getpid()} on {options.port}")
    if options.stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if options.pid_file:
        with options.pid_file.open("a") as file:
            file.write(f"{os.getpid()}\n")
    if options.exit is not None:
        print("the stand-in's last words", file=sys.stderr)
        sys.exit(options.exit)
    if options.deaf:
        signal.pause()
    HTTPServer(("127.0.0.1", options.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
