"""The command line: one file per verb, imported only when that verb is called."""

from kvconn.cli.app import app, main

__all__ = ["app", "main"]
