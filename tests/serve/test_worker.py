"""The worker thread: requests share batches, take turns, can be cancelled, and get their own answers.

No test depends on the speed of the machine: gates hold the worker's thread until everything is in its queue.
"""

import contextlib
import queue
import random
import threading
from functools import partial

import pytest
import torch

import sightline
from sightline.config import SearchConfig, ServeConfig
from sightline.data.builtin import generate
from sightline.errors import InputError
from sightline.serve.models import Models
from sightline.serve.problems import Problem
from sightline.serve.worker import Job, JobResult, Worker
from support import hooks

TEXTS = [pair.source for pair in generate("test", 60)]
GREEDY, BEAMS = SearchConfig(beams=1), SearchConfig()


@pytest.fixture(scope="module", params=["torch", "ctranslate2"])
def engine(taught, request):
    return sightline.load(taught, device="cpu", backend=request.param)


@pytest.fixture
def worker():
    worker = Worker(ServeConfig())
    worker.sizes = []
    worker.on_batch = lambda sentences, _seconds: worker.sizes.append(sentences)
    yield worker
    worker.stop(60)
    assert not worker.alive
    assert worker.waiting == 0


class Client:
    """A job and its events. `log` records (client, event) of several clients in one order."""

    def __init__(self, worker, engine, texts, config=BEAMS, log=None, *, streamed=False, what_if=None, **more):
        self.events, self.log, self.worker = queue.SimpleQueue(), log, worker
        self.job = Job(engine, partial(engine.plan, texts, config, **more), self._receive, streamed, what_if)

    def _receive(self, event):
        if self.log is not None:
            self.log.append((self, event))
        self.events.put(event)

    def send(self):
        self.worker.submit(self.job)
        return self

    def all(self):
        """All events up to the last."""
        found = [self.events.get(timeout=120)]
        while isinstance(found[-1], str):
            found.append(self.events.get(timeout=120))
        return found

    def texts(self):
        last = self.all()[-1]
        assert isinstance(last, JobResult), last
        return [one.text for one in last.result]


def block(worker):
    """Hold the worker's thread until the returned event is set. The thread has nothing else to do by then."""
    started, release = threading.Event(), threading.Event()
    worker.call(lambda: started.set() or release.wait(120))
    assert started.wait(60)
    return release


def pause_after_first_batch(worker):
    """Two events: the worker has finished a batch; the worker may continue."""
    paused, release = threading.Event(), threading.Event()

    def pause(*_):
        paused.set()
        release.wait(120)

    worker.on_batch = pause
    return paused, release


def settle(worker):
    """Wait until the worker has finished the step that it is in."""
    worker.call(lambda: None).result(60)


def order_of_results(log):
    return [client for client, event in log if isinstance(event, JobResult)]


def test_waiting_requests_share_batches_and_get_their_own_answers(worker, engine):
    chance = random.Random(1)
    requests = [
        ([chance.choice(TEXTS) for _ in range(chance.randrange(1, 4))], chance.choice([GREEDY, BEAMS]))
        for _ in range(40)
    ]
    release = block(worker)
    clients = [Client(worker, engine, texts, config).send() for texts, config in requests]
    assert worker.waiting == 40
    release.set()
    for client, (texts, config) in zip(clients, requests, strict=True):
        assert client.texts() == [one.text for one in engine.run(engine.plan(texts, config))]
    settle(worker)
    assert max(worker.sizes) > 10
    assert sum(worker.sizes) == sum(len(texts) for texts, _ in requests)


def test_changed_requests_share_batches_with_no_other(worker, engine):
    changes = [None, {"without": ["positions"]}, {"without": ["positions"]}, {"without": ["scale"]}]
    release = block(worker)
    clients = [Client(worker, engine, TEXTS[:3], GREEDY, what_if=one).send() for one in changes * 2]
    release.set()
    for client, one in zip(clients, changes * 2, strict=True):
        with engine.what_if(**one) if one else contextlib.nullcontext():
            assert client.texts() == [found.text for found in engine.translate(TEXTS[:3], beams=1)]
    settle(worker)
    assert sorted(worker.sizes) == [3] * 6 + [6]
    assert hooks(engine.model) == 0


def test_single_request_starts_without_waiting(engine):
    """`wait` is for requests under load. If it applied here, each of these would wait for one second."""
    worker = Worker(ServeConfig(wait=1.0))
    served = [Client(worker, engine, [text]).send().all()[-1] for text in TEXTS[:5]]
    assert min(one.waited for one in served) < 0.9
    worker.stop(60)


def test_long_request_does_not_block_short_ones(engine):
    worker, log = Worker(ServeConfig(batch_tokens=1024)), []
    paused, release = pause_after_first_batch(worker)
    long = Client(worker, engine, TEXTS * 5, log=log).send()
    assert paused.wait(60)
    shorts = [Client(worker, engine, [text], log=log).send() for text in TEXTS[:5]]
    release.set()
    assert [short.texts() for short in shorts] == [[one.text] for one in engine.translate(TEXTS[:5])]
    assert long.texts() == [one.text for one in engine.translate(TEXTS)] * 5
    assert order_of_results(log)[-1] is long
    worker.stop(60)


def test_long_sentence_gets_its_turn_among_endless_short_ones(taught):
    """A sentence that is much longer is not put into a batch of short ones; and it starts although short ones arrive
    faster than they are answered."""
    engine = sightline.load(taught, device="cpu", backend="torch")
    worker, sizes, answered = Worker(ServeConfig()), [], threading.Event()
    worker.on_batch = lambda sentences, _seconds: sizes.append(sentences)

    class Endless(Client):
        """Sends its request again after each answer, from the worker's thread, until the long one is answered."""

        def _receive(self, event):
            super()._receive(event)
            if not answered.is_set():
                Endless(worker, engine, [TEXTS[0]], GREEDY, self.log).send()

    class Long(Client):
        def _receive(self, event):
            super()._receive(event)
            answered.set()

    log = []
    release = block(worker)
    for _ in range(4):
        Endless(worker, engine, [TEXTS[0]], GREEDY, log).send()
    words = " ".join(text.rstrip(".") for text in TEXTS[:12])
    long = Long(worker, engine, [words], GREEDY, log).send()
    release.set()
    assert long.texts() == [engine.translate(words, beams=1)[0].text]
    settle(worker)
    assert sizes[0] == 4, "the long sentence is not in the batch of the first short ones"
    assert len(order_of_results(log)) > 4
    worker.stop(60)


def test_cancelled_requests_are_not_searched(worker, engine):
    release = block(worker)
    clients = [Client(worker, engine, TEXTS[i : i + 2]).send() for i in range(20)]
    for one in clients[::2]:
        one.job.cancelled = True
    release.set()
    for i, one in enumerate(clients):
        if i % 2:
            assert one.texts() == [one.text for one in engine.translate(TEXTS[i : i + 2])]
    settle(worker)
    assert all(one.events.empty() for one in clients[::2])
    assert sum(worker.sizes) == 20


def test_streams_share_a_batch(worker, engine):
    release, log = block(worker), []
    texts = [*TEXTS[:6], f"{TEXTS[6]}\n{TEXTS[7]}"]
    streams = [Client(worker, engine, [text], GREEDY, log, streamed=True) for text in texts]
    others = [Client(worker, engine, [text], GREEDY) for text in TEXTS[:6]]
    for one in [*streams, *others]:
        one.send()
    release.set()
    for one, text in zip(streams, texts, strict=True):
        *chunks, last = one.all()
        assert "".join(chunks) == last.result[0].text == engine.translate(text, beams=1)[0].text
        assert len(chunks) > 2
    for one, text in zip(others, TEXTS, strict=False):
        assert one.texts() == [engine.translate(text, beams=1)[0].text]
    first_result = next(i for i, (_, event) in enumerate(log) if isinstance(event, JobResult))
    assert {client for client, _ in log[:first_result]} == set(streams), "all of them grow at the same time"


def test_batches_of_one_step_do_not_block_a_stream(taught):
    """CTranslate2 searches a batch in one step. Between two of them a stream has as much time as the last one took."""
    engine = sightline.load(taught, device="cpu", backend="ctranslate2")
    worker, log = Worker(ServeConfig()), []
    paused, release = pause_after_first_batch(worker)
    many = [Client(worker, engine, TEXTS * 5, log=log).send() for _ in range(6)]
    assert paused.wait(60)
    stream = Client(worker, engine, [TEXTS[0]], GREEDY, log, streamed=True).send()
    release.set()
    assert stream.all()[-1].result[0].text == engine.translate(TEXTS[0], beams=1)[0].text
    assert all(len(one.texts()) == 300 for one in many)
    assert order_of_results(log).index(stream) < 4
    worker.stop(60)


def test_errors_reach_only_their_own_request(worker, engine):
    wrong = Client(worker, engine, ["a\nb"], prefix="x").send()
    assert isinstance(wrong.all()[-1], InputError)
    large = Client(Worker(ServeConfig(max_tokens=10)), engine, [TEXTS[0]]).send()
    error = large.all()[-1]
    assert isinstance(error, Problem)
    assert error.kind == "too-large"
    good = Client(worker, engine, [TEXTS[0]]).send()
    assert good.texts() == [engine.translate(TEXTS[0])[0].text]

    class Broken:
        def plan(self, *_, **__):
            raise RuntimeError("a bug")

    broken = Client(worker, Broken(), ["a"]).send()
    assert isinstance(broken.all()[-1], RuntimeError)
    assert worker.call(lambda: 7).result(60) == 7
    with pytest.raises(ZeroDivisionError):
        worker.call(lambda: 1 / 0).result(60)
    assert worker.alive


def test_full_queue_refuses_requests(engine):
    worker = Worker(ServeConfig(max_queue=3))
    release = block(worker)
    clients = [Client(worker, engine, [text]).send() for text in TEXTS[:3]]
    with pytest.raises(Problem, match="waiting"):
        Client(worker, engine, ["a"]).send()
    with pytest.raises(Problem, match="waiting"):
        worker.call(lambda: 1)
    release.set()
    assert all(client.texts() for client in clients)
    assert Client(worker, engine, ["a"]).send().texts()
    worker.stop(60)


def test_stop_answers_all_earlier_requests(engine):
    worker = Worker(ServeConfig())
    clients = [Client(worker, engine, [text]).send() for text in TEXTS]
    worker.stop(120)
    assert not worker.alive
    assert all(not client.events.empty() for client in clients)
    with pytest.raises(Problem, match="waiting"):
        Client(worker, engine, ["a"]).send()


def test_models_are_loaded_on_one_thread(taught):
    """If another thread computes with several threads, OpenMP stops those of a model from spinning, and a step of a
    search takes twice as long."""
    threads, before = [], torch.get_num_threads()
    models = Models({"one": taught}, lambda folder: threads.append(torch.get_num_threads()) or sightline.load(folder))
    models.load_first()
    models.close()
    assert threads == [1]
    assert torch.get_num_threads() == before
