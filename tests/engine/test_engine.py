"""What the engine does with a connector, one thing at a time."""

from __future__ import annotations

from functools import partial
from random import Random

import pytest

from kvconn.engine import KVShape, Limits, Phase
from kvconn.errors import ConfigurationError
from kvconn.testing.counting import CountingBackend
from kvconn.testing.runner import open_runner
from kvconn.testing.slow import SlowBackend, SlowWorker
from kvconn.types import BlockState, TransferKind

CPU = "cpu://?capacity=1MiB"
SHAPE = KVShape(num_blocks=16, block_tokens=4, blocks_per_chunk=3)
PAIR = KVShape(num_blocks=16, block_tokens=4, blocks_per_chunk=3, ranks=2)


def never(backend):
    """A backend whose transfers end only when they are waited for."""
    return SlowBackend(backend, Random(0), polls=10**9)  # noqa: S311 - no secret


class OneBadLoad(CountingBackend):
    """On one rank, the load of one key fails."""

    def __init__(self, inner, *, rank=0, key=0):
        super().__init__(inner)
        self.rank, self.key = rank, key

    def open_worker(self, pool, caches, namespace, shard):
        inner = super().open_worker(pool, caches, namespace, shard)
        if shard.index != self.rank:
            return inner
        loads, submit, poll = set(), inner.submit, inner.poll

        def note(transfer, blocks):
            if transfer.kind is TransferKind.LOAD:
                loads.add(transfer.id)
            submit(transfer, blocks)

        def spoil():
            return [
                (id_, [v and not (id_ in loads and i == self.key) for i, v in enumerate(said)])
                for id_, said in poll()
            ]

        inner.submit, inner.poll = note, spoil
        return inner


# -- what is loaded -----------------------------------------------------------------------


@pytest.mark.needs("cpu")
def test_what_the_engine_has_of_a_chunk_is_not_loaded_again(asynchronous):
    with open_runner(CPU, SHAPE, asynchronous=asynchronous) as runner:
        flushed = [] if asynchronous else range(3)
        runner.run(range(12), stored=range(3), flushed=flushed)
        runner.engine.reset_prefix_cache()
        runner.run(range(9))  # two whole blocks, no chunk: they are in the engine again
        runner.run(range(12), loaded=[2])
        assert runner.engine.figures.local_hits == 2


@pytest.mark.needs("cpu")
def test_a_partial_last_block_is_never_stored(asynchronous):
    with open_runner(CPU, SHAPE, asynchronous=asynchronous) as runner:
        runner.run(range(11))
        assert runner.backend.plain.offers == 0


@pytest.mark.needs("cpu")
def test_what_a_request_may_not_write_is_not_offered(asynchronous):
    with open_runner(CPU, SHAPE, asynchronous=asynchronous) as runner:
        runner.run(range(12), skip_writing=True)
        assert runner.backend.plain.offers == 0


@pytest.mark.needs("cpu")
def test_another_tenant_gets_nothing(asynchronous):
    with open_runner(CPU, SHAPE, asynchronous=asynchronous) as runner:
        flushed = [] if asynchronous else range(3)
        runner.run(range(12), salt="one", stored=range(3), flushed=flushed)
        runner.run(range(12), salt="two", stored=range(3), flushed=flushed)


@pytest.mark.needs("cpu")
def test_an_answer_is_stored_when_it_fills_a_chunk(asynchronous):
    with open_runner(CPU, SHAPE, asynchronous=asynchronous) as runner:
        first = runner.submit([1] * 5, answer=[2] * 8)
        runner.settle()
        assert runner.moved["stored", first.context.id] == [0, 1, 2]
        runner.engine.reset_prefix_cache()
        runner.run([1] * 5 + [2] * 8, loaded=range(3))


@pytest.mark.needs("cpu")
def test_tokens_that_were_never_sampled_are_not_stored():
    with open_runner(CPU, SHAPE, asynchronous=True) as runner:
        # The twelfth token would fill the chunk; the scheduler expects it and it does not come.
        runner.submit([1] * 8, answer=[2] * 3, max_answer=8)
        runner.settle()
        assert runner.backend.plain.offers == 0


# -- transfers in flight ------------------------------------------------------------------


@pytest.mark.needs("cpu")
def test_blocks_are_not_used_again_before_their_store_has_read_them(asynchronous):
    shape = KVShape(num_blocks=3, block_tokens=4, blocks_per_chunk=3)
    with open_runner(CPU, shape, asynchronous=asynchronous, wrap=never) as runner:
        for prompt in ([1] * 12, [2] * 12, [3] * 12):
            runner.submit(prompt)
        runner.settle()
        assert runner.engine.figures.stored == 9
        for prompt in ([1] * 12, [2] * 12, [3] * 12):
            runner.run(prompt, loaded=range(3))


@pytest.mark.needs("cpu")
def test_a_request_may_be_aborted_while_it_loads(asynchronous):
    with open_runner(CPU, SHAPE, asynchronous=asynchronous, wrap=never) as runner:
        runner.submit(range(12))
        runner.settle()
        runner.engine.reset_prefix_cache()
        request = runner.submit(range(12))
        runner.engine.step()
        assert request.phase is Phase.LOADING
        runner.engine.abort(request.context.id)
        assert runner.engine.blocks.free == SHAPE.num_blocks - 3  # the transfer has them
        others = [runner.submit([n] * 24) for n in range(3)]
        runner.settle()
        assert all(other.phase is Phase.ENDED for other in others)


@pytest.mark.needs("cpu")
def test_a_request_may_be_preempted_while_it_loads_and_looks_up_again(asynchronous):
    with open_runner(CPU, SHAPE, asynchronous=asynchronous, wrap=never) as runner:
        runner.submit(range(12))
        runner.settle()
        runner.engine.reset_prefix_cache()
        request = runner.submit(range(12))
        runner.engine.step()
        runner.engine.preempt(request.context.id)
        assert request.phase is Phase.WAITING
        lookups = runner.backend.plain.lookups
        runner.settle()
        assert runner.backend.plain.lookups == lookups + 1
        assert runner.engine.figures.computed == 3  # by the first request alone


@pytest.mark.needs("cpu")
def test_an_answer_that_runs_out_of_blocks_takes_those_of_a_later_request(asynchronous):
    shape = KVShape(num_blocks=8, block_tokens=2, blocks_per_chunk=1)
    with open_runner(CPU, shape, asynchronous=asynchronous) as runner:
        first = runner.submit([1] * 4, answer=[1] * 10)
        second = runner.submit([2] * 6, answer=[2] * 10)
        while not runner.engine.figures.preemptions:
            runner.engine.step()
        assert (first.phase, second.phase) == (Phase.RUNNING, Phase.WAITING)
        runner.settle()
        assert (first.length, second.length) == (14, 16)


# -- failures -----------------------------------------------------------------------------


@pytest.mark.parametrize("key", [0, 1])
@pytest.mark.needs("cpu")
def test_what_fails_to_load_is_computed_with_all_after_it(asynchronous, key):
    wrap = partial(OneBadLoad, key=key)
    with open_runner(CPU, SHAPE, asynchronous=asynchronous, wrap=wrap) as runner:
        runner.submit(range(24))
        runner.settle()
        runner.engine.reset_prefix_cache()
        again = runner.submit(range(24))
        runner.settle()
        figures = runner.engine.figures
        assert figures.external_hits == 3 * key
        assert figures.computed == 6 + 6 - 3 * key
        # The failed key was forgotten, and what was computed in its place is stored.
        assert runner.moved["stored", again.context.id][:3] == [3 * key + i for i in range(3)]


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.needs("cpu")
def test_a_key_that_one_rank_did_not_load_was_not_loaded(asynchronous, rank):
    wrap = partial(OneBadLoad, rank=rank)
    with open_runner(CPU, PAIR, asynchronous=asynchronous, wrap=wrap) as runner:
        runner.submit(range(12))
        runner.settle()
        runner.engine.reset_prefix_cache()
        runner.submit(range(12))
        runner.settle()
        assert runner.engine.figures.external_hits == 0
        assert runner.engine.figures.computed == 6


def test_each_rank_loads_its_own_bytes(url, keeps, asynchronous):
    with open_runner(url, PAIR, asynchronous=asynchronous) as runner:
        runner.submit(range(12))
        runner.settle()
        runner.engine.reset_prefix_cache()
        if keeps:
            runner.run(range(12), loaded=range(3))


@pytest.mark.needs("cpu")
def test_a_backend_that_never_knows_costs_patience_and_no_more():
    class NeverSure(CountingBackend):
        def lookup(self, request, keys):
            super().lookup(request, keys)
            return bytes([BlockState.PENDING]) * len(keys)

    limits = Limits(patience_s=0.01)
    with open_runner(CPU, SHAPE, limits=limits, wrap=NeverSure) as runner:
        for _ in range(2):
            runner.submit(range(12))
            runner.settle()
            runner.engine.reset_prefix_cache()
        assert runner.engine.figures.computed == 6


@pytest.mark.needs("cpu")
def test_a_drain_has_a_deadline(monkeypatch):
    monkeypatch.setattr(SlowWorker, "wait", lambda self, ids, deadline: None)
    with open_runner(CPU, SHAPE, asynchronous=True, wrap=never) as runner:
        runner.submit(range(12))
        assert not runner.engine.drain(0.05)
        assert runner.engine.leaks()["transfers"] == 1


# -- requests that cannot be ----------------------------------------------------------------


@pytest.mark.needs("cpu")
def test_a_request_that_could_never_get_its_blocks_is_refused():
    with (
        open_runner(CPU, SHAPE) as runner,
        pytest.raises(ConfigurationError, match="needs 17 blocks"),
    ):
        runner.submit(range(4 * 16), answer=[0])


@pytest.mark.needs("cpu")
def test_a_request_that_is_there_already_is_refused():
    with open_runner(CPU, SHAPE) as runner:
        request = runner.submit(range(4))
        with pytest.raises(ValueError, match="there already"):
            runner.engine.submit(request)
        runner.settle()
