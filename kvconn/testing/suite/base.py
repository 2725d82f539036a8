"""What a backend author subclasses: how the kit gets at a backend, and what may be left out."""

from __future__ import annotations

import bisect
import types
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from kvconn.blockstore import BlockStore, BlockStoreBackend
from kvconn.blockstore.seal import object_bytes
from kvconn.identity import Namespace, content_key
from kvconn.testing.profiles import Profile
from kvconn.testing.rig import Rig, geometry_of
from kvconn.tiers import TieredBackend

if TYPE_CHECKING:
    from kvconn.backend import Backend, Settings
    from kvconn.geometry import Geometry
    from kvconn.identity import Key

__all__ = ["Kit", "Open", "needs", "rule_of"]

Open = Callable[..., Rig]
"""``open_rig(chunks=8, *, ranks=1, replicas=1, namespace=..., policies=(), settings=None,
strict=True, wrap=...)``: one more engine over the test's store."""

_OURS = "kvconn.testing."
_LARGEST = 1 << 26
"""Bytes within which a capacity for a few chunks of a kilobyte must lie."""

_REASONS = {
    "keeps": "it declares keeps = False: nothing that is stored can be found",
    "pinned": "it declares pinned = False: others may remove what is leased",
    "advisory": "it declares pinned = True: nobody else removes blocks",
    "persistent": "it does not declare persistent: what it holds ends with its process",
    "block_store": "it is no block store: it has no objects that the kit could reach",
    "index": "what it holds is not decided by kvconn's index",
    "one_tier": "it is a composition: what one tier drops another may hold",
    "seen": "its scheduler's process does not see the store",
}
"""By capability, why a test that needs it is skipped."""


def needs(*capabilities: str) -> pytest.MarkDecorator:
    """Mark a test that means something only where a backend declares ``capabilities``."""
    unknown = set(capabilities) - set(_REASONS)
    if unknown:
        msg = f"no capability {sorted(unknown)}: there are {sorted(_REASONS)}"
        raise ValueError(msg)
    return pytest.mark.kvconn_needs(*capabilities)


def rule_of(test: str) -> str:
    """``"L3"`` for ``"test_L3_a_store_cannot_be_found_before_it_is_complete"``."""
    return test.split("_")[1]


def _tiers(backend: Backend) -> list[Backend]:
    if isinstance(backend, TieredBackend):
        return [leaf for tier in backend.tiers for leaf in _tiers(tier)]
    return [backend]


def _chunks(backend: Any, geometry: Geometry) -> int:  # noqa: ANN401 - with an index, or without
    fits = getattr(backend, "chunks_that_fit", None)
    return _LARGEST if fits is None else int(fits(geometry))


class Kit:
    """Base of :class:`kvconn.testing.BackendTests`: what an author overrides, and fixtures."""

    xfails: ClassVar[Mapping[str, str]] = {}
    """``{"test name": "reason"}``: deviations that are known.  Strict: one that passes fails."""

    place: Path
    """A directory that is there for this test alone, empty at first; where a store may live."""
    namespace: Namespace
    """Of this test's engines; no other test uses it, not even in another process."""

    def make_backend(self, capacity: int) -> Backend:
        """One more instance over the same store, which may hold ``capacity`` bytes in total.

        Called several times in a test: an engine's scheduler half and each of its worker halves
        have an instance of their own, and so has an engine that is started later.  All of them
        reach the same store, in :attr:`place` if it is one of files.
        """
        del capacity
        msg = f"{type(self).__name__} must override make_backend(self, capacity)"
        raise NotImplementedError(msg)

    # -- an independent way to the stored bytes, where there is one --------------------------

    def stored_objects(self) -> Mapping[bytes, bytes]:
        """What the store holds now, by a name of your own choice; for damage.

        By default read with a store of the backend's own.  Override it to look behind its back.
        """
        store = self._own_store()
        names = list(store.scan())
        buffers = [memoryview(bytearray(self._object_bytes)) for _ in names]
        found = store.get(names, buffers)
        store.close()
        whole = zip(names, buffers, found, strict=True)
        return {name: bytes(buffer) for name, buffer, there in whole if there}

    def replace_object(self, name: bytes, content: bytes) -> None:
        """Put ``content``, of any length, where :meth:`stored_objects` found ``name``."""
        store = self._own_store()
        store.put([name], [memoryview(bytearray(content))])
        store.close()

    def remove_object(self, name: bytes) -> None:
        """Remove what :meth:`stored_objects` found as ``name``, as somebody else would."""
        store = self._own_store()
        store.delete([name])
        store.close()

    def _own_store(self) -> BlockStore:
        backend: Any = self.make_backend(self.capacity_for(8, geometry_of()))
        store: BlockStore = backend.Store(backend.config)
        store.open(self.namespace)
        return store

    @property
    def _object_bytes(self) -> int:
        return object_bytes(geometry_of().chunk_bytes)

    # -- what it can do ----------------------------------------------------------------------

    def capacity_for(self, chunks: int, geometry: Geometry) -> int:
        """The least capacity, in bytes, in which ``chunks`` chunks fit."""
        if not any(hasattr(t, "chunks_that_fit") for t in _tiers(self.make_backend(_LARGEST))):
            return chunks * geometry.workers * geometry.slot_bytes
        known: dict[tuple[int, int, int], int] = vars(self).setdefault("_capacities", {})
        asked = chunks, geometry.ranks, geometry.replicas
        if asked in known:
            return known[asked]

        def fit(capacity: int) -> int:
            try:
                tiers = _tiers(self.make_backend(capacity + 1))
                return min(_chunks(tier, geometry) for tier in tiers)
            except Exception:  # noqa: BLE001 - too small for its configuration
                return 0

        found = 1 + bisect.bisect_left(range(_LARGEST), chunks, key=fit)
        known[asked] = found
        return found

    def capabilities(self) -> set[str]:
        """What the backend declares, in the words of :func:`needs`."""
        backend = self.make_backend(_LARGEST)
        able = set()
        if backend.keeps:
            able |= {"keeps", "pinned" if backend.pinned else "advisory"}
        if backend.persistent:
            able.add("persistent")
        if isinstance(backend, BlockStoreBackend):
            able.add("block_store")
            if backend.Store(backend.config).capabilities.scheduler_visible:
                able.add("seen")
        if not isinstance(backend, TieredBackend):
            able.add("one_tier")
        if hasattr(backend, "chunks_that_fit"):
            able.add("index")
        return able

    # -- fixtures ----------------------------------------------------------------------------

    @pytest.fixture(autouse=True)
    def _what_it_needs(self, request: pytest.FixtureRequest, tmp_path: Path) -> None:
        self.place = tmp_path / "store"
        self.place.mkdir()
        self.namespace = Namespace("model", revision=uuid.uuid4().hex, dtype="uint8")
        self.profile = Profile.of(request.config)
        able = self.capabilities()
        for marker in request.node.iter_markers("kvconn_needs"):
            for capability in marker.args:
                if capability not in able:
                    pytest.skip(_REASONS[capability])
        for marker in request.node.iter_markers("kvconn_profile"):
            if self.profile < Profile[marker.args[0].upper()]:
                pytest.skip(f"only in the profile {marker.args[0]}")

    @pytest.fixture
    def open_rig(self) -> Iterator[Open]:
        """Opens engines over the test's store, and closes them when it ends."""
        with ExitStack() as stack:

            def open_it(
                chunks: int = 8,
                *,
                ranks: int = 1,
                replicas: int = 1,
                namespace: Namespace | None = None,
                policies: Sequence[tuple[str, Any]] = (),
                settings: Settings | None = None,
                strict: bool = True,
                wrap: Callable[[Any], Any] = lambda backend: backend,
            ) -> Rig:
                geometry = geometry_of(ranks, replicas)
                capacity = self.capacity_for(chunks, geometry)
                rig = Rig(
                    lambda: self.make_backend(capacity), geometry, namespace or self.namespace,
                    policies=policies, settings=settings, strict=strict, wrap=wrap,
                )  # fmt: skip
                stack.callback(rig.close)
                if "index" in self.capabilities():
                    assert rig.capacity == chunks, "it reports another capacity than it was given"
                elif {"keeps", "one_tier"} <= self.capabilities() and rig.capacity != chunks:
                    pytest.skip(f"it has room for {rig.capacity} chunks, not {chunks}")
                return rig

            yield open_it

    @pytest.fixture
    def keys(self) -> list[Key]:
        """Eight keys in prefix order."""
        return [content_key("prompt", number) for number in range(8)]

    # -- deviations are stated ---------------------------------------------------------------

    def __init_subclass__(cls, **arguments: Any) -> None:  # noqa: ANN401 - of other bases
        super().__init_subclass__(**arguments)
        if cls.__module__.startswith(_OURS):
            return
        inherited = {
            name
            for base in cls.__mro__
            if base.__module__.startswith(_OURS)
            for name in vars(base)
            if name.startswith("test_")
        }
        unknown = sorted(set(cls.xfails) - inherited)
        changed = sorted(name for name in inherited if _is_changed(cls, name))
        if unknown:
            msg = f"{cls.__name__}.xfails names {unknown[0]}, which no test is called: remove it"
            raise TypeError(msg)
        if changed or cls.__dict__.get("__test__") is False:
            name = changed[0] if changed else "__test__"
            msg = (
                f"{cls.__name__} changes the inherited {name}: leave it as it is, or state why it "
                f"deviates in xfails = {{{name!r}: reason}}"
            )
            raise TypeError(msg)
        for name, reason in cls.xfails.items():
            _expect_failure(cls, name, reason)


def _is_changed(cls: type[Kit], name: str) -> bool:
    """Whether something else than the kit's own test answers to ``name``, without a reason."""
    owner = next(base for base in cls.__mro__ if name in vars(base))
    stated = {*cls.xfails, *getattr(owner, "xfails", {})}
    return not owner.__module__.startswith(_OURS) and name not in stated


def _expect_failure(cls: type[Kit], name: str, reason: str) -> None:
    """Give ``cls`` a copy of its own, so that the mark stays off other backends."""
    if not reason.strip():
        msg = f"{cls.__name__}.xfails gives no reason for {name}: say why it deviates"
        raise TypeError(msg)
    test = getattr(cls, name)
    if not isinstance(test, types.FunctionType):
        msg = f"{cls.__name__} removes {name}: leave the test, its entry in xfails is enough"
        raise TypeError(msg)
    copy = types.FunctionType(
        test.__code__, test.__globals__, name, test.__defaults__, test.__closure__
    )
    copy.__dict__.update(test.__dict__)
    copy.__kwdefaults__ = test.__kwdefaults__
    copy.__annotations__ = test.__annotations__
    copy.pytestmark = list(getattr(test, "pytestmark", ()))  # type: ignore[attr-defined] # pytest's
    setattr(cls, name, pytest.mark.xfail(strict=True, reason=reason)(copy))
