"""Guards and threads: what plugins may do to them."""

from __future__ import annotations

import functools
import math
import threading
from types import SimpleNamespace

import pytest
from pydantic import SecretBytes, SecretStr

from kvconn import threads
from kvconn.backend import PluginConfig
from kvconn.guard import Guard
from kvconn.secrets import conceal
from kvconn.threads import Background, Workers, run_bounded


def broken(error: BaseException) -> None:
    raise error


@pytest.fixture
def guard() -> Guard:
    return Guard("plugin")


@pytest.fixture
def event():
    event = threading.Event()
    yield event
    event.set()


# -- guard -------------------------------------------------------------------------------------


def test_a_guard_gives_the_answer_or_what_is_said_otherwise(guard):
    assert guard.call(int, "7", otherwise=0, consequence="none") == 7
    assert guard.call(int, "x", otherwise=0, consequence="none") == 0
    assert guard.errors == 1


def test_one_kind_of_failure_is_logged_once_and_always_counted(guard, caplog):
    for _ in range(3):
        guard.failed("lookup", KeyError("a"), "a miss")
    guard.failed("lookup", ValueError("b"), "a miss")
    guard.failed("touch", KeyError("c"), "nothing")
    assert guard.errors == 5
    assert [record.getMessage() for record in caplog.records] == [
        "plugin.lookup raised KeyError('a'): a miss; this is logged once",
        "plugin.lookup raised ValueError('b'): a miss; this is logged once",
        "plugin.touch raised KeyError('c'): nothing; this is logged once",
    ]


def test_the_log_says_where_a_failure_came_from(guard, caplog):
    guard.call(int, "x", otherwise=0, consequence="none")
    (record,) = caplog.records
    first, *rest = record.getMessage().splitlines()
    assert first.startswith("plugin.int raised ValueError")
    assert rest[0] == "Traceback (most recent call last):"


def test_C3_a_secret_in_what_a_plugin_raises_is_struck_out(guard, caplog):
    class Options(PluginConfig):
        password: SecretStr
        token: SecretBytes
        host: str

    conceal(Options(password="hunter2", token=b"tok-en", host="somewhere"))  # noqa: S106 - a test

    def connect():
        msg = "somewhere refused redis://me:hunter2@somewhere with tok-en"
        raise OSError(msg)

    guard.call(connect, otherwise=None, consequence="none")
    assert "hunter2" not in caplog.text
    assert "tok-en" not in caplog.text
    assert "redis://me:***@somewhere" in caplog.text


def test_a_callable_without_a_name_is_guarded_too(guard, caplog):
    assert guard.call(functools.partial(broken, OSError()), otherwise=1, consequence="none") == 1
    assert guard.call_for(
        int, functools.partial(broken, OSError()), otherwise=1, consequence="none"
    ) == 1  # fmt: skip
    assert guard.errors == 2


def test_an_answer_of_another_shape_is_a_failure(guard):
    assert guard.call_for(dict, lambda: [("a", 1)], otherwise={}, consequence="none") == {"a": 1}
    assert guard.call_for(dict, lambda: None, otherwise={}, consequence="none") == {}
    assert guard.errors == 1


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_who_wants_the_process_to_end_gets_through(guard, error):
    with pytest.raises(error):
        guard.call(broken, error(), otherwise=None, consequence="none")


def test_failures_from_many_threads_are_all_counted_and_logged_once(guard, caplog):
    def fail() -> None:
        for _ in range(200):
            guard.failed("get", OSError(), "none")

    running = [threading.Thread(target=fail) for _ in range(8)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert guard.errors == 1600
    assert len(caplog.records) == 1


# -- threads -----------------------------------------------------------------------------------


def test_a_bounded_call_says_whether_it_ended(event):
    assert run_bounded(lambda: None, 10, "quick") is True
    assert run_bounded(event.wait, 0.01, "hangs") is False


def test_what_a_bounded_call_raises_in_time_is_raised():
    with pytest.raises(OSError, match="broken"):
        run_bounded(lambda: broken(OSError("broken")), 10, "raises")


def test_a_bounded_call_of_no_time_at_all_returns(event):
    assert run_bounded(event.wait, 0.0, "hangs") is False


def test_background_work_runs_says_so_and_ends(event):
    work = Background(event.wait, "work")
    assert work.running
    work.join(0.01)
    assert work.running
    event.set()
    work.join(10)
    assert not work.running


def test_what_background_work_raises_is_logged(caplog):
    work = Background(lambda: broken(OSError("full")), "sweep")
    work.join(10)
    assert "background sweep raised OSError('full')" in caplog.text


def test_one_worker_does_jobs_in_the_order_in_which_they_were_put():
    done: list[int] = []
    workers = Workers(1, "order")
    for number in range(100):
        workers.put(functools.partial(done.append, number))
    assert workers.close(10) is True
    assert done == list(range(100))


def test_several_workers_work_at_once():
    barrier = threading.Barrier(3)
    workers = Workers(3, "together")
    for _ in range(3):
        workers.put(lambda: barrier.wait(10))
    assert workers.close(10) is True
    assert not barrier.broken


def test_closing_workers_returns_in_time_while_a_job_hangs(event):
    workers = Workers(2, "hang")
    workers.put(event.wait)
    assert workers.close(0.01) is False


def test_every_thread_is_a_daemon_and_says_whose_it_is(monkeypatch, event):
    made: list[threading.Thread] = []

    class Noted(threading.Thread):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            made.append(self)

    monkeypatch.setattr(threads, "threading", SimpleNamespace(Thread=Noted))
    run_bounded(lambda: None, 10, "a")
    Background(lambda: None, "b").join(10)
    Workers(2, "c").close(10)
    assert [thread.name for thread in made] == ["kvconn-a", "kvconn-b", "kvconn-c-0", "kvconn-c-1"]
    assert all(thread.daemon for thread in made)


def test_C3_a_secret_is_struck_out_however_it_was_configured_and_quoted(guard, caplog):
    class Login(PluginConfig):
        token: SecretStr

    class Options(PluginConfig):
        logins: list[Login]

    secret = "it's\\hid\"den"  # noqa: S105 - a test
    conceal(Options(logins=[Login(token=secret)]))
    guard.failed("get", OSError(f"refused {secret}"), "a miss")
    assert "hid" not in caplog.text


def test_a_deadline_may_be_infinite():
    assert run_bounded(lambda: None, math.inf, "test")
