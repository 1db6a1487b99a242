"""How many plans came out how: by shape, and by what is waited for."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from tests.lockgraphs.kinds import KINDS
from tests.lockgraphs.trial import Trial

_OUTCOMES = ("right", "abstained", "wrong", "innocent accused")


def tables(trials: Iterable[Trial]) -> str:
    """Two tables as text."""
    shapes: dict[str, Counter[str]] = defaultdict(Counter)
    kinds: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for trial in trials:
        language = trial.plan.language.value
        shape = shapes[trial.plan.shape.value]
        shape["all"] += 1
        shape[trial.compared.judgement.outcome.value] += 1
        for row in trial.compared.rows:
            count = kinds[language, row.kind]
            count["all"] += 1
            count["named"] += row.named
            count["recorded"] += row.right is not None
            count["holder"] += row.right is True
            count["wrong"] += row.wrong
        for ring, found, proven in trial.compared.rings:
            shape["rings"] += 1
            shape["sure"] += ring.sure
            shape["found"] += found
            shape["proven"] += proven and ring.sure
    heads = f"{'right':>7}{'open':>7}{'wrong':>7}{'innocent':>10}{'cycles found':>16}{'proven':>12}"
    lines = [f"{'shape':<26}{'plans':>7}{heads}"]
    for name, count in sorted(shapes.items()):
        rings = f"{count['found']}/{count['rings']}" if count["rings"] else ""
        proven = f"{count['proven']}/{count['sure']}" if count["sure"] else ""
        told = "".join(f"{count[key]:>{width}}" for key, width in zip(_OUTCOMES, (7, 7, 7, 10), strict=True))
        lines.append(f"{name:<26}{count['all']:>7}{told}{rings:>16}{proven:>12}")
    lines += ["", f"{'waits for':<30}{'waits':>7}{'object named':>14}{'holder right':>14}{'wrong':>7}"]
    for language, table in KINDS.items():
        for kind in table:
            count = kinds.get((language.value, kind), Counter())
            if not count["all"]:
                continue
            holder = f"{count['holder']}/{count['recorded']}" if count["recorded"] else "-"
            name = f"{language.value} {kind}"
            lines.append(f"{name:<30}{count['all']:>7}{count['named']:>14}{holder:>14}{count['wrong']:>7}")
    return "\n".join(lines)
