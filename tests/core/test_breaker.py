"""When a circuit breaker asks again."""

from __future__ import annotations

from kvconn.blockstore.breaker import Breaker, Circuit


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_F3_calls_that_were_on_their_way_when_it_opened_make_no_pause_longer():
    clock = Clock()
    breaker = Breaker(clock=clock)
    for _ in range(50):
        breaker.failed()
    assert breaker.circuit is Circuit.OPEN
    clock.now += 1.3  # the first pause is a second, and a quarter at most
    assert breaker.circuit is Circuit.PROBING


def test_F3_each_probe_that_fails_doubles_the_pause():
    clock = Clock()
    breaker = Breaker(clock=clock)
    for _ in range(3):
        breaker.failed()
    for pause in (1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0):
        clock.now += 0.74 * pause
        assert breaker.circuit is Circuit.OPEN
        clock.now += 0.52 * pause
        assert breaker.lets_through()
        breaker.failed()


def test_F3_a_probe_that_is_never_heard_of_again_is_followed_by_another():
    clock = Clock()
    breaker = Breaker(clock=clock, probe_s=5.0)
    for _ in range(3):
        breaker.failed()
    clock.now += 1.3
    assert breaker.lets_through()
    assert not breaker.lets_through()
    clock.now += 5.1
    assert breaker.lets_through()
