"""A small reference engine: paged KV, a local prefix cache, and a scheduler of either kind.

It computes nothing.  Every block is filled with content that its key decides, so that one wrong
byte, wherever it comes from, is seen: see :mod:`kvconn.engine.content`.
"""

from kvconn.engine.engine import Engine
from kvconn.engine.figures import Figures
from kvconn.engine.opening import open_engine
from kvconn.engine.paged import KVShape, PagedKV
from kvconn.engine.request import EngineRequest, Phase
from kvconn.engine.state import Limits
from kvconn.engine.worker import EngineWorker

__all__ = [
    "Engine",
    "EngineRequest",
    "EngineWorker",
    "Figures",
    "KVShape",
    "Limits",
    "PagedKV",
    "Phase",
    "open_engine",
]
