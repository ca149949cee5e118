"""The thread that computes: requests share batches, take turns, leave, and get their own answers."""

import queue
import random
import threading
import time

import pytest
import torch

import sightline
from sightline.config import SearchConfig, ServeConfig
from sightline.data.builtin import generate
from sightline.errors import InputError
from sightline.serve.models import Models
from sightline.serve.problems import Problem
from sightline.serve.worker import Job, QueueFullError, Served, Worker

TEXTS = [pair.source for pair in generate("test", 60)]
GREEDY, BEAMS = SearchConfig(beams=1), SearchConfig()


@pytest.fixture(scope="module", params=["torch", "ctranslate2"])
def engine(taught, request):
    return sightline.load(taught, device="cpu", engine=request.param)


@pytest.fixture
def worker():
    worker = Worker(ServeConfig())
    worker.sizes = []
    worker.batches = lambda sentences, _seconds: worker.sizes.append(sentences)
    yield worker
    worker.stop(20)
    assert not worker.alive
    assert worker.waiting == 0


class Asking:
    """A job, and what it was told."""

    def __init__(self, worker, engine, texts, config=BEAMS, **more):
        self.events, self.times = queue.SimpleQueue(), []
        self.job = Job(engine, texts, config, self._told, **more)
        self.worker = worker

    def _told(self, event):
        self.times.append(time.monotonic())
        self.events.put(event)

    def send(self):
        self.worker.submit(self.job)
        return self

    def all(self):
        """Everything that it is told, until it is over."""
        told = [self.events.get(timeout=60)]
        while isinstance(told[-1], str):
            told.append(self.events.get(timeout=60))
        return told

    def texts(self):
        last = self.all()[-1]
        assert isinstance(last, Served), last
        return [one.text for one in last.translations]


def busy(worker):
    """Keep the thread from working until it is let go."""
    go = threading.Event()
    worker.call(lambda: go.wait(30))
    return go


def test_requests_that_wait_are_searched_together_and_each_gets_its_own(worker, engine):
    chance = random.Random(1)
    asked = [
        ([chance.choice(TEXTS) for _ in range(chance.randrange(1, 4))], chance.choice([GREEDY, BEAMS]))
        for _ in range(40)
    ]
    go = busy(worker)
    jobs = [Asking(worker, engine, texts, config).send() for texts, config in asked]
    assert worker.waiting == 41
    go.set()
    for job, (texts, config) in zip(jobs, asked, strict=True):
        assert job.texts() == [one.text for one in engine.search(texts, config)]
    assert max(worker.sizes) > 10
    assert sum(worker.sizes) == sum(len(texts) for texts, _ in asked)


def test_one_alone_is_begun_at_once(engine):
    """However long those who are many may wait for each other."""
    worker = Worker(ServeConfig(wait=1.0))
    for text in TEXTS[:5]:
        (served,) = Asking(worker, engine, [text]).send().all()
        assert served.waited < 0.5
    worker.stop(10)


def test_a_long_request_does_not_keep_short_ones_waiting(engine):
    worker = Worker(ServeConfig(batch_tokens=1024))
    long = Asking(worker, engine, TEXTS * 5).send()
    time.sleep(0.05)
    shorts = [Asking(worker, engine, [text]).send() for text in TEXTS[:5]]
    found = [short.texts() for short in shorts]
    assert long.events.empty(), "the long one is not over yet"
    assert found == [[one.text] for one in engine.translate(TEXTS[:5])]
    assert long.texts() == [one.text for one in engine.translate(TEXTS)] * 5
    worker.stop(20)


def test_short_ones_do_not_wait_for_a_long_sentence_nor_it_for_ever(taught):
    """One that is much longer is not put among short ones; and it has its turn, however many of them come."""
    engine = sightline.load(taught, device="cpu", engine="torch")
    worker, stop = Worker(ServeConfig()), threading.Event()
    answered = []

    def short_ones():
        while not stop.is_set():
            answered.append(Asking(worker, engine, [TEXTS[0]], GREEDY).send().texts())

    threads = [threading.Thread(target=short_ones) for _ in range(4)]
    for thread in threads:
        thread.start()
    words = " ".join(text.rstrip(".") for text in TEXTS[:12])
    long = Asking(worker, engine, [words], GREEDY).send()
    assert long.texts() == [engine.translate(words, beam=1)[0].text]
    stop.set()
    for thread in threads:
        thread.join()
    assert len(answered) > 4
    worker.stop(20)


def test_who_is_gone_takes_no_place(worker, engine):
    go = busy(worker)
    jobs = [Asking(worker, engine, TEXTS[i : i + 2]).send() for i in range(20)]
    for one in jobs[::2]:
        one.job.gone = True
    go.set()
    for i, one in enumerate(jobs):
        if i % 2:
            assert one.texts() == [one.text for one in engine.translate(TEXTS[i : i + 2])]
    assert all(one.events.empty() for one in jobs[::2])
    assert sum(worker.sizes) == 20


def test_text_is_told_while_others_are_searched(worker, engine):
    go = busy(worker)
    jobs = [Asking(worker, engine, [text], GREEDY, aloud=True) for text in [*TEXTS[:6], f"{TEXTS[6]}\n{TEXTS[7]}"]]
    others = [Asking(worker, engine, [text], GREEDY) for text in TEXTS[:6]]
    for one in [*jobs, *others]:
        one.send()
    go.set()
    for one in jobs:
        *told, last = one.all()
        assert "".join(told) == last.translations[0].text == engine.translate(one.job.texts[0], beam=1)[0].text
        assert len(told) > 2
        assert one.times[-1] - one.times[0] > 0
    for one in others:
        assert one.texts() == [engine.translate(one.job.texts[0], beam=1)[0].text]


def test_a_stream_is_not_held_up_by_batches_that_are_searched_in_one_go(taught):
    """Between two of them it has as much time as one has taken, which is enough to end."""
    engine = sightline.load(taught, device="cpu", engine="ctranslate2")
    worker = Worker(ServeConfig())
    many = [Asking(worker, engine, TEXTS * 5).send() for _ in range(6)]
    time.sleep(0.05)
    stream = Asking(worker, engine, [TEXTS[0]], GREEDY, aloud=True).send()
    assert stream.all()[-1].translations[0].text == engine.translate(TEXTS[0], beam=1)[0].text
    assert sum(not one.events.empty() for one in many) < 4
    assert all(len(one.texts()) == 300 for one in many)
    worker.stop(20)


def test_what_goes_wrong_with_one_is_told_to_that_one(worker, engine):
    wrong = Asking(worker, engine, ["a\nb"], prefix="x").send()
    assert isinstance(wrong.all()[-1], InputError)
    large = Asking(Worker(ServeConfig(max_tokens=10)), engine, [TEXTS[0]]).send()
    assert isinstance(large.all()[-1], Problem)
    good = Asking(worker, engine, [TEXTS[0]]).send()
    assert good.texts() == [engine.translate(TEXTS[0])[0].text]

    class Broken:
        def asked(self, *_, **__):
            raise RuntimeError("this should not have happened")

    broken = Asking(worker, Broken(), ["a"]).send()
    assert str(broken.all()[-1]) == "this should not have happened"
    assert worker.call(lambda: 7).result(10) == 7
    with pytest.raises(ZeroDivisionError):
        worker.call(lambda: 1 / 0).result(10)
    assert worker.alive


def test_no_more_wait_than_may(engine):
    worker = Worker(ServeConfig(max_queue=3))
    go = busy(worker)
    deadline = time.monotonic() + 5
    while worker.waiting and time.monotonic() < deadline:
        time.sleep(0.01)  # until it is kept busy
    jobs = [Asking(worker, engine, [text]).send() for text in TEXTS[:3]]
    with pytest.raises(QueueFullError):
        Asking(worker, engine, ["a"]).send()
    with pytest.raises(QueueFullError):
        worker.call(lambda: 1)
    go.set()
    assert all(job.texts() for job in jobs)
    assert Asking(worker, engine, ["a"]).send().texts()
    worker.stop(10)


def test_what_was_asked_before_the_end_is_answered(engine):
    worker = Worker(ServeConfig())
    jobs = [Asking(worker, engine, [text]).send() for text in TEXTS]
    worker.stop(30)
    assert not worker.alive
    assert all(not job.events.empty() for job in jobs)
    with pytest.raises(QueueFullError):
        Asking(worker, engine, ["a"]).send()


def test_models_are_loaded_on_one_thread(taught):
    """While other threads compute with several, OpenMP does not let those of a model spin, and a step takes twice as
    long."""
    threads, before = [], torch.get_num_threads()
    models = Models({"one": taught}, lambda folder: threads.append(torch.get_num_threads()) or sightline.load(folder))
    models.load_first()
    models.close()
    assert threads == [1]
    assert torch.get_num_threads() == before
