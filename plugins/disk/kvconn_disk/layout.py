"""Where everything lies.

::

    <root>/usage                            bytes in use, shared by all engines
    <root>/engines/<token>                  locked by an open store for as long as it lives
    <root>/<namespace>/namespace.json       what the namespace means, for people
    <root>/<namespace>/<2 hex>/<name>.kv    an object
    <root>/<namespace>/<2 hex>/<name>.<token>-<n>.tmp    one that is being written
    <root>/<namespace>/spare/<size>-<token>-<n>.spare    a file whose blocks the next object takes

A name is the object's id in hex, without the namespace that its directory has.  Nothing comes
from what users write, and no name is longer than 200 characters.
"""

from __future__ import annotations

from kvconn.identity import DIGEST_BYTES, parse_object_id

__all__ = ["DESCRIPTION", "ENGINES", "OBJECT", "SPARE", "TEMPORARY", "USAGE", "Home", "token_of"]

USAGE, ENGINES, DESCRIPTION = "usage", "engines", "namespace.json"
OBJECT, TEMPORARY, SPARE = ".kv", ".tmp", ".spare"


class Home:
    """The directory of one namespace."""

    def __init__(self, root: str, namespace: bytes) -> None:
        self.namespace = namespace
        self.path = f"{root}/{namespace.hex()}"
        self.spares = f"{self.path}/spare"
        self.folders = [f"{self.path}/{number:02x}" for number in range(256)]

    def folder_of(self, object_id: bytes) -> str:
        """The directory that an object is in."""
        return self.folders[object_id[-1]]

    def path_of(self, object_id: bytes) -> str:
        """The file that an object is."""
        return f"{self.folders[object_id[-1]]}/{object_id[DIGEST_BYTES:].hex()}{OBJECT}"

    def id_of(self, name: str) -> bytes:
        """The object that a file of this name is; ``ValueError`` when it is none."""
        if not name.endswith(OBJECT):
            msg = f"{name!r} is no object's name"
            raise ValueError(msg)
        object_id = self.namespace + bytes.fromhex(name.removesuffix(OBJECT))
        parse_object_id(object_id)
        return object_id


def token_of(name: str) -> str:
    """Whose temporary file it is; empty when that cannot be told."""
    return name.removesuffix(TEMPORARY).rpartition(".")[2].partition("-")[0]
