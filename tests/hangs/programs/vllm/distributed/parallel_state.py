"""Where a worker is among the others, as vLLM keeps it."""


class GroupCoordinator:
    def __init__(self, rank_in_group, world_size):
        self.rank_in_group, self.world_size = rank_in_group, world_size


_TP = None
_PP = None


def initialize_model_parallel(rank, size):
    global _TP, _PP
    _TP, _PP = GroupCoordinator(rank, size), GroupCoordinator(0, 1)
