"""The conformance kit over this backend, and over it behind a faster one."""

from __future__ import annotations

import os

from kvconn_disk import DiskBackend, DiskConfig

from kvconn.testing import BackendTests


class TestDisk(BackendTests):
    def make_backend(self, capacity):
        return DiskBackend(DiskConfig(path=self.place, capacity=capacity))

    def stored_objects(self):
        return {str(path).encode(): path.read_bytes() for path in self.place.rglob("*.kv")}

    def replace_object(self, name, content):
        with open(name, "wb") as file:  # noqa: PTH123 - a name of bytes
            file.write(content)

    def remove_object(self, name):
        os.unlink(name)  # noqa: PTH108 - as above


class TestSharedDisk(TestDisk):
    def make_backend(self, capacity):
        return DiskBackend(DiskConfig(path=self.place, capacity=capacity, shared=True))
