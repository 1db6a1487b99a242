"""What the ranks of train.py wait in when they have several process groups. Each announces its rank and then enters."""

import announce
import late
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional


def grid(job):
    """Four ranks as two by two: the tensor-parallel and the data-parallel group of this one."""
    mine = {}
    for name, members in (("tp", ([0, 1], [2, 3])), ("dp", ([0, 2], [1, 3]))):
        for ranks in members:
            group = dist.new_group(ranks, group_desc=name)
            if job.rank in ranks:
                mine[name] = group
    for group in mine.values():
        dist.all_reduce(torch.ones(2), group=group)
    return mine["tp"], mine["dp"]


def tp_lacks_one(job, role):
    """Rank 1 sleeps before the tensor-parallel sum; 0 waits for it there, 2 and 3 are in the data-parallel one."""
    tp, dp = grid(job)
    if job.rank == 1:
        late.sleep(role, None)
    announce.member(role)
    dist.all_reduce(torch.ones(4), group=tp)
    dist.all_reduce(torch.ones(6), group=dp)


def three_groups_in_a_ring(job, role):
    """Each rank waits for the next one in a group of two that the next one would only use later."""
    pairs = [dist.new_group([0, 1]), dist.new_group([1, 2]), dist.new_group([0, 2])]
    own = (pairs[0], pairs[1], pairs[2])[job.rank]
    for pair in pairs:
        dist.all_reduce(torch.ones(2), group=pair)
    announce.member(role)
    dist.all_reduce(torch.ones(4), group=own)


def differ_in_subgroup(job, role):
    """Ranks 2 and 3 call different operations of their group, 0 and 1 wait for them in the world."""
    tp, _dp = grid(job)
    announce.member(role)
    if job.rank == 3:
        dist.broadcast(torch.ones(4), src=2, group=tp)
        # The broadcast of a root ends before it came: this one is not the root.
    elif job.rank == 2:
        dist.all_reduce(torch.ones(4), group=tp)
    dist.barrier()


def async_in_two_groups(job, role):
    """Work was begun in two groups and is waited for: rank 3 has come to neither."""
    tp, dp = grid(job)
    if job.rank == 3:
        late.sleep(role, None)
    work = [dist.all_reduce(torch.ones(4), group=group, async_op=True) for group in (tp, dp)]
    announce.member(role)
    for each in work:
        each.wait()
    dist.barrier()


def functional_in_group(job, role):
    """A functional collective of a group, waited for when the result is used."""
    tp, _dp = grid(job)
    if job.rank == 2:
        late.sleep(role, None)
    result = functional.all_reduce(torch.ones(4), "sum", tp)
    announce.member(role)
    result.sum()
    dist.barrier()


def uneven_batches(job, role):
    """Rank 1 has one batch less: it is at the barrier after the epoch, the others in the reduction of the last step."""
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    for _step in range(2 if job.rank == 1 else 3):
        loss = model(torch.ones(2, 4)).sum()
        if _step == 2:
            announce.member(role)
        loss.backward()
    if job.rank == 1:
        announce.member(role)
    dist.barrier()


def pipeline_lacks_one(job, role):
    """Three stages: the middle one sleeps; the next one waits for its output, the one before for its gradient."""
    if job.rank == 1:
        late.sleep(role, None)
    announce.member(role)
    tensor = torch.zeros(8)
    if job.rank == 0:
        dist.send(tensor, dst=1)
    dist.recv(tensor, src=1)


def receive_and_barrier(job, role):
    """Rank 0 wants a message of rank 1, which waits for it in a barrier."""
    announce.member(role)
    if job.rank == 0:
        dist.recv(torch.zeros(8), src=1)
    dist.barrier()


def receive_in_group(job, role):
    """Rank 3 wants a message by its number in a group; the sender sleeps."""
    tp, _dp = grid(job)
    if job.rank == 2:
        late.sleep(role, None)
    announce.member(role)
    if job.rank == 3:
        dist.recv(torch.zeros(8), group=tp, group_src=0)
    dist.barrier()


def objects_of_group(job, role):
    """The root of a group's broadcast_object_list sleeps."""
    tp, _dp = grid(job)
    if job.rank == 0:
        late.sleep(role, None)
    announce.member(role)
    if job.rank == 1:
        dist.broadcast_object_list([None], src=0, group=tp)
    dist.barrier()


def new_group_lacks_one(job, role):
    """A new group is made by all but one."""
    if job.rank == 2:
        late.sleep(role, None)
    announce.member(role)
    dist.new_group([0, 1, 2])


def other_tag(job, role):
    """Rank 0 sends with another tag than the one that rank 1 waits for; too much to be kept on the way."""
    tensor = torch.zeros(1 << 22)
    announce.member(role)
    if job.rank == 0:
        dist.send(tensor, dst=1, tag=3)
    else:
        dist.recv(tensor, src=0, tag=5)


def five_do_one_more(job, role):
    """Five of eight ranks take a branch with an all_reduce that the other three do not take."""
    announce.member(role)
    if job.rank >= 3:
        dist.all_reduce(torch.ones(4))
    dist.all_gather([torch.ones(4) for _ in range(job.world_size)], torch.ones(4))


def fsdp_lacks_one(job, role):
    """The all_gather of a sharded model's parameters."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Linear(16, 16))
    fully_shard(model, mesh=init_device_mesh("cpu", (job.world_size,)))
    model(torch.ones(2, 16)).sum().backward()
    if job.rank == 1:
        late.sleep(role, None)
    announce.member(role)
    model(torch.ones(2, 16)).sum().backward()


def dtensor_lacks_one(job, role):
    """A DTensor is gathered over one dimension of a mesh."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    sharded = distribute_tensor(torch.ones(8, 8), mesh["tp"], [Shard(0)])
    sharded.full_tensor()
    if job.rank == 1:
        late.sleep(role, None)
    announce.member(role)
    sharded.redistribute(mesh["tp"], [Replicate()]).to_local().sum().item()
    dist.barrier()


def key_never_set(job, role):
    """All but rank 0 wait for a key of the store, which it is to set."""
    store = dist.PrefixStore("weights", dist.distributed_c10d._get_default_store())
    if job.rank == 0:
        late.sleep(role, None)
        store.set("ready", "1")
    announce.member(role)
    store.get("ready")


def roots_differ(job, role):
    """Both broadcast, and take the other one for the root."""
    announce.member(role)
    dist.broadcast(torch.zeros(8), src=1 - job.rank)


def key_of_an_outsider(job, role):
    """All but rank 0 wait for a key that somebody else is to set, once he likes to; rank 0 has something else to do."""
    store = dist.distributed_c10d._get_default_store()
    if job.rank == 0:
        late.sleep(role, None)
    announce.member(role)
    store.wait(["operator/go"])


def keys_of_ranks(job, role):
    """All wait for a key of each rank; rank 2 does not set its own."""
    store = dist.distributed_c10d._get_default_store()
    if job.rank == 2:
        late.sleep(role, None)
    store.set(f"loaded/{job.rank}", "1")
    announce.member(role)
    store.wait([f"loaded/{rank}" for rank in range(job.world_size)])


def key_in_a_file(job, role):
    """All but rank 0 wait for a key of a store that is a file."""
    store = dist.FileStore(job.path, job.world_size)
    if job.rank == 0:
        late.sleep(role, None)
        store.set("ready", "1")
    announce.member(role)
    store.get("ready")


def waits_out_of_order(job, role):
    """Two operations were begun, and the second one is waited for."""
    if job.rank == 1:
        late.sleep(role, None)
    parts = [torch.zeros(4) for _ in range(job.world_size)]
    first = dist.all_reduce(torch.ones(4), async_op=True)
    second = dist.all_gather(parts, torch.ones(4), async_op=True)
    announce.member(role)
    second.wait()
    first.wait()


def ring_of_a_grid(job, role):
    """Ranks 0 and 3 use their data-parallel group first, 1 and 2 their tensor-parallel one."""
    tp, dp = grid(job)
    announce.member(role)
    for group in (dp, tp) if job.rank in (0, 3) else (tp, dp):
        dist.all_reduce(torch.ones(4), group=group)


def one_call_too_many(job, role):
    """Rank 2 does an all_reduce more; the others are through and wait for a signal."""
    announce.member(role)
    for _ in range(2 if job.rank == 2 else 1):
        dist.all_reduce(torch.ones(4))


def sharded_step_skipped(job, role):
    """Rank 1 leaves out a step of a model of FSDP2 and is at the barrier, the others gather its parameters."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Linear(16, 16))
    mesh = init_device_mesh("cpu", (job.world_size,))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    announce.member(role)
    for _step in range(1 if job.rank == 1 else 2):
        model(torch.ones(2, 16)).sum().backward()
    dist.barrier()


def placements_differ(job, role):
    """A DTensor is replicated from shards on two ranks, from partial sums on the third."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

    mesh = init_device_mesh("cpu", (job.world_size,))
    placement = Partial() if job.rank == 1 else Shard(0)
    tensor = DTensor.from_local(torch.ones(8, 8), mesh, [placement], run_check=False)
    announce.member(role)
    tensor.redistribute(mesh, [Replicate()]).to_local().sum().item()
    dist.barrier()


def stage_stuck(job, role):
    """The middle stage of torch's pipeline schedule sleeps in its forward pass."""
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    stuck = []

    class Layer(torch.nn.Linear):
        def forward(self, batch):
            if job.rank == 1 and stuck:
                late.sleep(role, None)
            return super().forward(batch)

    stage = PipelineStage(Layer(16, 16), job.rank, job.world_size, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=torch.nn.MSELoss())
    batch = torch.ones(4, 16)
    for step in range(2):
        if step == 1:
            stuck.append(True)
            if job.rank != 1:
                announce.member(role)
        inputs = (batch,) if job.rank == 0 else ()
        last = {"target": batch} if job.rank == job.world_size - 1 else {}
        schedule.step(*inputs, **last)


def groups_at_full_speed(job, role):
    """Healthy: operations of two groups under way at a time, and messages along the pipeline."""
    tp, dp = grid(job)
    announce.member(role)
    while True:
        work = [dist.all_reduce(torch.ones(64), group=group, async_op=True) for group in (tp, dp)]
        for each in work:
            each.wait()
        if job.rank in (0, 1):
            dist.send(torch.ones(8), dst=job.rank + 2)
        else:
            dist.recv(torch.zeros(8), src=job.rank - 2)


def idle_group_engine(job, role):
    """Healthy: the first of each tensor-parallel group waits for requests, the others for what it tells them."""
    import socket

    tp, _dp = grid(job)
    first = dist.get_global_rank(tp, 0)
    listener = socket.create_server(("127.0.0.1", 0))
    announce.member(role)
    while True:
        if job.rank == first:
            listener.accept()
        dist.broadcast(torch.ones(4), src=first, group=tp)


OPS = {
    function.__name__: function
    for function in (
        tp_lacks_one,
        three_groups_in_a_ring,
        differ_in_subgroup,
        async_in_two_groups,
        functional_in_group,
        uneven_batches,
        pipeline_lacks_one,
        receive_and_barrier,
        receive_in_group,
        objects_of_group,
        new_group_lacks_one,
        other_tag,
        five_do_one_more,
        fsdp_lacks_one,
        dtensor_lacks_one,
        key_never_set,
        keys_of_ranks,
        key_in_a_file,
        key_of_an_outsider,
        roots_differ,
        waits_out_of_order,
        ring_of_a_grid,
        one_call_too_many,
        sharded_step_skipped,
        placements_differ,
        stage_stuck,
        groups_at_full_speed,
        idle_group_engine,
    )
}
