"""Servers that whet is tried on: where each comes from, and how it is started.

`obtain(NAME)` fetches a server once into a cache folder and answers with its `Recipe`; `tools/server.py` runs it.
"""

from servers.catalogue import NAMES, Recipe, obtain
from servers.fetch import FetchError, UnknownServer

__all__ = ["NAMES", "FetchError", "Recipe", "UnknownServer", "obtain"]
