"""Futures and pools of threads."""

import concurrent.futures
import threading

from stage import LONG_S, Primitive, is_at, primitive


@primitive("Future.result")
class FutureResult(Primitive):
    """Whoever holds is a worker's task, and the object is its future."""

    def __init__(self):
        self.pool = concurrent.futures.ThreadPoolExecutor(2)
        self.have = threading.Event()

    def start(self, inside):
        self.it = self.pool.submit(self._task, inside)
        self.have.set()

    def _task(self, inside):
        self.have.wait()
        inside()

    def locate_now(self):
        is_at(self.it)

    def want(self):
        self.it.result()


@primitive("Future.result timed")
class FutureResultTimed(FutureResult):
    def want(self):
        self.it.result(timeout=LONG_S)


@primitive("Future.exception")
class FutureException(FutureResult):
    def want(self):
        self.it.exception()


@primitive("futures.wait")
class FuturesWait(FutureResult):
    def want(self):
        concurrent.futures.wait([self.it])


@primitive("Executor.map")
class ExecutorMap(FutureResult):
    def locate_now(self):
        pass

    def start(self, inside):
        self.results = self.pool.map(self._task, [inside])
        self.have.set()

    def want(self):
        list(self.results)


@primitive("Executor.shutdown")
class ExecutorShutdown(FutureResult):
    def want(self):
        self.pool.shutdown()
