"""The conformance kit over this backend."""

from __future__ import annotations

from kvconn_cpu import CpuBackend, CpuConfig

from kvconn.testing import BackendTests


class TestCpu(BackendTests):
    def make_backend(self, capacity):
        return CpuBackend(CpuConfig(capacity=capacity))
