"""Workloads: the requests that ``kvconn replay`` sends through an engine.

A workload is an iterable of :class:`TraceRequest`, in the order in which they arrive.  It comes
from a file (:func:`read_trace`), from a seed (:func:`generate_chat`), or from the sample that
ships with kvconn (:func:`sample_path`).
"""

from kvconn.workload.draws import LogNormal
from kvconn.workload.generator import ChatShape, generate_chat
from kvconn.workload.reuse import PrefixReuse, summary
from kvconn.workload.sample import sample_path
from kvconn.workload.trace import BLOCK_TOKENS, TraceRequest, read_trace, write_trace

__all__ = [
    "BLOCK_TOKENS",
    "ChatShape",
    "LogNormal",
    "PrefixReuse",
    "TraceRequest",
    "generate_chat",
    "read_trace",
    "sample_path",
    "summary",
    "write_trace",
]
