"""The conformance kit over this backend."""

from __future__ import annotations

from kvconn_null import NullBackend

from kvconn.backend import PluginConfig
from kvconn.testing import BackendTests


class TestNull(BackendTests):
    def make_backend(self, capacity):
        return NullBackend(PluginConfig())
