"""Never stands still: threads, generators, deep and short calls, exceptions. Ends when its standard input does."""

import sys
import threading


def busy_leaf(number):
    if number % 7 == 0:
        raise ValueError(number)
    return number


def busy_generator(count):
    for number in range(count):
        try:
            yield busy_leaf(number)
        except ValueError:
            yield 0


def busy_deep(depth):
    return busy_deep(depth - 1) if depth else sum(busy_generator(20))


def busy_loop():
    while not END.is_set():
        busy_deep(60)
        exec(compile("busy_leaf(1)", "<made>", "exec"), {"busy_leaf": busy_leaf})


END = threading.Event()
sys.setswitchinterval(0.0001)
threads = [threading.Thread(target=busy_loop, name=f"busy-{i}") for i in range(4)]
for thread in threads:
    thread.start()
print("ready", flush=True)
sys.stdin.read()
END.set()
for thread in threads:
    thread.join()
