"""Names nobody chose, and the looks of a source file."""

from __future__ import annotations

import random
import re

_VERBS = "load flush sync merge pack fetch stage reap shard tune poll scan drain seal commit gather plan"
_NOUNS = "cache block page tensor batch weight index table bucket shard log queue lane slot ring epoch"
_BRACED = re.compile(r"\{([a-z]+)\}")


class Words:
    """Fresh names, each used once."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._used: set[str] = set()

    def name(self) -> str:
        """An identifier."""
        while True:
            words = [self._rng.choice(_VERBS.split()), self._rng.choice(_NOUNS.split())]
            if self._rng.random() < 0.4:
                words.append(str(self._rng.randrange(100)))
            found = "_".join(words)
            if found not in self._used:
                self._used.add(found)
                return found

    def text(self) -> str:
        """A quoted string for a thread, a file or a message."""
        return repr(self.name().replace("_", self._rng.choice("-_. ")))

    def fill(self, lines: tuple[str, ...], names: dict[str, str]) -> list[str]:
        """Replaces what is in braces; names that are not there yet are made up and added."""
        return [_BRACED.sub(lambda match: self._value(match[1], names), line) for line in lines]

    def _value(self, key: str, names: dict[str, str]) -> str:
        if key == "text":
            return self.text()
        if key == "long":
            return str(self._rng.randrange(3000, 90000))
        if key == "short":
            return str(self._rng.randrange(20, 45))
        if key not in names:
            names[key] = self.name()
        return names[key]


class Source:
    """Lines of a program, laid out by chance."""

    def __init__(self, rng: random.Random, words: Words) -> None:
        self._rng = rng
        self._words = words
        self.lines: list[str] = []

    def add(self, lines: list[str]) -> None:
        """A function, after some room and perhaps a remark."""
        self.lines += [""] * self._rng.randint(1, 4)
        if self._rng.random() < 0.3:
            self.lines += [f"# {self._words.name().replace('_', ' ')}"] * self._rng.randint(1, 9)
        self.lines += lines

    def text(self) -> str:
        return "\n".join(self.lines) + "\n"
