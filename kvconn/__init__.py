"""kvconn: one contract between LLM inference engines and the places that keep their KV cache.

Engine developers start at :class:`kvconn.connector.Connector`, backend authors at
:class:`kvconn.blockstore.BlockStore` or :class:`kvconn.backend.Backend`, policy authors at
:class:`kvconn.policy.Policy`.  The contract itself is :mod:`kvconn.hookspecs`.
"""

__version__ = "0.1.0"
