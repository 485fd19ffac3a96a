"""The servers that whet is tested on: the source of each, and how it is started.

`obtain(NAME)` fetches a server once into a cache folder and returns its `Recipe`. `tools/server.py` runs it.
"""

from servers.catalogue import NAMES, Recipe, obtain
from servers.fetch import FetchError, UnknownServer

__all__ = ["NAMES", "FetchError", "Recipe", "UnknownServer", "obtain"]
