"""The kit over backends that are always there, alone and composed."""

from __future__ import annotations

from healthy import MemoryBackend, MemoryConfig, Shelf, ShelfBackend, ShelfConfig

from kvconn.testing import BackendTests
from kvconn.tiers import compose


class TestMemory(BackendTests):
    def make_backend(self, capacity):
        return MemoryBackend(MemoryConfig(capacity=capacity))


class OnAShelf(BackendTests):
    """Keeps the shelf of each place, as a server would keep what it was given."""

    @property
    def shelf(self) -> Shelf:
        if not hasattr(self, "shelves"):
            self.shelves = {}
        return self.shelves.setdefault(self.place, Shelf())


class TestShelf(OnAShelf):
    def make_backend(self, capacity):
        return ShelfBackend(ShelfConfig(capacity=capacity, shelf=self.shelf))

    def stored_objects(self):
        return dict(self.shelf.objects)

    def replace_object(self, name, content):
        self.shelf.objects[name] = content

    def remove_object(self, name):
        del self.shelf.objects[name]


class Composed(OnAShelf):
    write = "write_through"

    def make_backend(self, capacity):
        fast = MemoryBackend(MemoryConfig(capacity=capacity))
        slow = ShelfBackend(ShelfConfig(capacity=capacity, shelf=self.shelf))
        return compose([("memory", fast), ("shelf", slow)], self.write)


class TestWriteThrough(Composed):
    pass


class TestWriteBack(Composed):
    write = "write_back"
