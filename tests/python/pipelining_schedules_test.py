"""Schedules of penstock.pipelining on two ranks: the reference model, all schedules, programs of
one's own.  Every gradient is compared with the unsplit model's.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path

import ranks
import torch
import torch.distributed as dist
from models import Reference, compare, placed, stages_of

import penstock
from penstock.pipelining import schedules
from penstock.pipelining.schedules import (
    B,
    F,
    I,
    PipelineScheduleMulti,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
    W,
    _Action,
    _PipelineScheduleRuntime,
    _ScheduleForwardOnly,
)

WORLD_SIZE = 2
SINGLE = ["GPipe", "1F1B"]
MULTI = [
    "Interleaved1F1B",
    "LoopedBFS",
    "InterleavedZeroBubble",
    "ZBVZeroBubble",
    "DualPipeV",
]


def check_every_schedule_equals_the_unsplit_model(group):
    for name in SINGLE + MULTI:
        reference = Reference(group, name)
        schedule = reference.schedule(schedules.get_schedule_class(name), n_microbatches=4)
        for _ in range(3):
            compare(reference, schedule)


def check_20_iterations_without_drift(group):
    reference = Reference(group, "1F1B", d_hid=512, batch=256)
    schedule = reference.schedule(Schedule1F1B, n_microbatches=4)
    compare(reference, schedule)
    first = [mine.grad.clone() for mine, _ in reference.parameters()]
    for _ in range(19):
        compare(reference, schedule)
        for (mine, _), gradient in zip(reference.parameters(), first, strict=True):
            assert torch.equal(mine.grad, gradient)


def check_a_mean_over_uneven_microbatches_is_the_batch_s(group):
    for name in ["GPipe", "ZBVZeroBubble"]:
        reference = Reference(group, name, batch=10, reduction="mean")
        schedule = reference.schedule(schedules.get_schedule_class(name), n_microbatches=4)
        compare(reference, schedule)


def check_scales(group):
    x = torch.randn(8, 16, generator=torch.Generator().manual_seed(5))
    for reduction, scale_grads, factor in [
        ("sum", None, 1),
        ("sum", True, 1 / 4),
        ("sum", False, 1),
        ("mean", None, 1),
        ("mean", True, 1),
        ("mean", False, 4),
    ]:
        reference = Reference(group, "GPipe", batch=8, d_hid=16, reduction=reduction)
        schedule = reference.schedule(ScheduleGPipe, n_microbatches=4, scale_grads=scale_grads)
        reference.step(schedule, x, x)
        reference.plain_step(x, x)
        for mine, plain in reference.parameters():
            torch.testing.assert_close(mine.grad, factor * plain.grad)


def check_under_the_profiler(group):
    reference = Reference(group, "1F1B")
    schedule = reference.schedule(Schedule1F1B, n_microbatches=4)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        compare(reference, schedule)
    assert any("addmm" in event.key for event in profile.key_averages())


def check_several_steps_add_up(group):
    reference = Reference(group, "ZBVZeroBubble")
    schedule = reference.schedule(ScheduleZBVZeroBubble, n_microbatches=4)
    for seed in range(3):
        x, y = reference.data(seed)
        reference.step(schedule, x, y)
        reference.plain_step(x, y)
    reference.compare_gradients()


def check_batches_of_changing_sizes(group):
    reference = Reference(group, "Interleaved1F1B")
    schedule = reference.schedule(schedules.ScheduleInterleaved1F1B, n_microbatches=4)
    for batch in [16, 8, 32, 10, 16]:
        compare(reference, schedule, batch=batch)


def check_evaluation_changes_nothing(group):
    for name in ["GPipe", "Interleaved1F1B", "ZBVZeroBubble"]:
        reference = Reference(group, name, batch=10)
        schedule = reference.schedule(schedules.get_schedule_class(name), n_microbatches=4)
        compare(reference, schedule)
        before = [mine.grad.clone() for mine, _ in reference.parameters()]
        x, y = reference.data(3)
        losses = []
        output = reference.call(schedule.eval, x, y, losses)
        if reference.is_last:
            torch.testing.assert_close(output, reference.plain(x))
            assert not output.requires_grad and len(losses) == 4
            torch.testing.assert_close(sum(losses), reference.loss(output, y))
        else:
            assert output is None and losses == []
        for (mine, _), gradient in zip(reference.parameters(), before, strict=True):
            assert torch.equal(mine.grad, gradient)
        output = schedule.eval(*reference.inputs(x))
        assert (output is not None) == reference.is_last


def check_evaluation_before_training_and_in_between(group):
    reference = Reference(group, "ZBVZeroBubble")
    schedule = reference.schedule(ScheduleZBVZeroBubble, n_microbatches=4)
    x, y = reference.data(1)
    for _ in range(2):
        reference.call(schedule.eval, x, y, [])
        reference.drop_gradients()
        compare(reference, schedule)


class Normalised(torch.nn.Module):
    def __init__(self, d_hid):
        super().__init__()
        self.linear = torch.nn.Linear(d_hid, d_hid)
        self.norm = torch.nn.BatchNorm1d(d_hid)
        self.forwards = 0

    def forward(self, x):
        self.forwards += 1
        return self.norm(self.linear(x))


def check_every_microbatch_is_run_once(group):
    module = Normalised(8)
    (stage,) = stages_of({dist.get_rank(group): module}, 2, group)
    schedule = Schedule1F1B(stage, 4, loss_fn=torch.nn.MSELoss())
    x = torch.randn(16, 8)
    for _ in range(2):
        schedule.step(*placed(stage, x), **({"target": x} if stage.is_last else {}))
    assert module.norm.num_batches_tracked == 8 and module.forwards == 8
    module.eval()
    schedule.eval(*placed(stage, x))
    assert module.norm.num_batches_tracked == 8 and module.forwards == 12
    assert not module.training


def check_forward_only(group):
    reference = Reference(group, "GPipe", batch=10)
    stage = reference.stages()[0]
    schedule = _ScheduleForwardOnly(stage, 4)
    x, _ = reference.data(0)
    output = schedule.step(*reference.inputs(x))
    if reference.is_last:
        torch.testing.assert_close(output, reference.plain(x))
    try:
        schedule.step(*reference.inputs(x), target=x)
    except RuntimeError as error:
        assert "neither target nor losses" in str(error)
    else:
        raise AssertionError("a target was taken")


class Scaled(torch.nn.Module):
    """Takes and returns tuples of several types, and a keyword tensor."""

    def __init__(self, d_hid):
        super().__init__()
        self.linear = torch.nn.Linear(d_hid, d_hid)

    def forward(self, x, mask, *, y):
        return self.linear(x) + y * mask.to(x.dtype).unsqueeze(1), mask


def check_tuples_of_several_types_and_keyword_tensors(group):
    torch.manual_seed(0)
    modules = [Scaled(8) for _ in range(2)]
    rank = dist.get_rank(group)
    (stage,) = stages_of({rank: modules[rank]}, 2, group)
    mask = torch.arange(12) % 3
    x, y = torch.randn(12, 8), torch.randn(12, 8)

    def loss(outputs, target):
        return (outputs[0] - target).square().sum() + 0 * outputs[1].sum()

    loss.reduction = "sum"
    schedule = Schedule1F1B(stage, 4, loss_fn=loss)
    ends = {"target": x} if stage.is_last else {}
    output = schedule.step(*placed(stage, x, mask), y=y, **ends)
    expected = modules[1](*modules[0](x, mask, y=y), y=y)
    if stage.is_last:
        torch.testing.assert_close(output[0], expected[0])
        assert output[1].dtype == torch.int64 and torch.equal(output[1], mask)
    mine = [p.grad for p in modules[rank].parameters()]
    for module in modules:
        module.zero_grad()
    loss(expected, x).backward()
    for gradient, parameter in zip(mine, modules[rank].parameters(), strict=True):
        torch.testing.assert_close(gradient, parameter.grad)


class Unbalanced(PipelineScheduleMulti):
    """Stages 0, 1 and 4 on rank 0, 2 and 3 on rank 1."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        down = {0: [0, 1], 1: [2, 3]}
        self.pipeline_order = {
            0: [*_all(F, down[0]), None, *_all(F, [4]), *_all(B, [4]), None, *_all(B, [1, 0])],
            1: [None, *_all(F, down[1]), *_all(B, [3, 2])],
        }


def _all(kind, stages, count=2):
    return [_Action(stage, kind, m) for stage in stages for m in range(count)]


def check_an_unbalanced_placement(group):
    reference = Reference(group, "unbalanced", placement=[[0, 1, 4], [2, 3]])
    schedule = reference.schedule(
        Unbalanced, n_microbatches=2, stage_index_to_group_rank={0: 0, 1: 0, 2: 1, 3: 1, 4: 0}
    )
    compare(reference, schedule)


class Split(PipelineScheduleMulti):
    """A V with backwards in two halves."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.pipeline_order = {
            0: [*_all(F, [0, 3]), *_all(I, [3]), *_all(W, [3]), *_all(I, [0]), *_all(W, [0])],
            1: [*_all(F, [1, 2]), *_all(I, [2, 1]), *_all(W, [1, 2])],
        }


def check_a_v_with_split_backwards(group):
    reference = Reference(group, "v", placement=[[0, 3], [1, 2]])
    compare(reference, reference.schedule(Split, n_microbatches=2, use_full_backward=False))


def check_programs_from_csv_in_both_formats(group):
    folder = Path(os.environ["STORE"]).parent
    rank = dist.get_rank(group)
    reference = Reference(group, "csv", placement=[[0, 2], [1, 3]])
    made = reference.schedule(ScheduleInterleavedZeroBubble, n_microbatches=4)
    for form in ["compute_only", "compute_comms"]:
        path = folder / f"{form}-{rank}.csv"
        made._dump_csv(path, form)
        has_messages = "SEND" in path.read_text()
        assert has_messages == (form == "compute_comms")
        schedule = reference.schedule(_PipelineScheduleRuntime, n_microbatches=4)
        schedule._load_csv(path, format=form)
        compare(reference, schedule)


def check_functions_in_place_of_actions(group):
    reference = Reference(group, "DualPipeV")
    schedule = reference.schedule(schedules.ScheduleDualPipeV, n_microbatches=4)
    seen = []

    def note(action, context):
        seen.append(str(action))
        stages = {stage.stage_index: stage for stage in context.schedule_ref._stages}
        assert context.kwarg_mbs == [{}] * 4
        for part in action.sub_actions or (action,):
            stage, m = stages[part.stage_index], part.microbatch_index
            if part.computation_type == F:
                stage.forward_one_chunk(m, context.arg_mbs and context.arg_mbs[m])
            elif part.computation_type == W:
                stage.backward_weight_one_chunk(m)
            else:
                stage.backward_one_chunk(m, full_backward=part.computation_type == B)

    for kind in [schedules.OVERLAP_F_B, F, B, I, W]:
        schedule.register_custom_function(kind, note)
    compare(reference, schedule)
    program = list(map(str, schedule.pipeline_order[dist.get_rank(group)]))
    assert seen == program, (seen, program)
    assert any("OVERLAP_F_B" in cell for cell in seen)
    schedule.register_custom_function(F, lambda action, context: None)
    schedule.register_custom_function(schedules.OVERLAP_F_B, lambda action, context: None)
    x, y = reference.data(0)
    try:
        reference.step(schedule, x, y)
    except penstock.Error as error:
        assert "ran it 0 times, must run it once" in str(error)
    else:
        raise AssertionError("a forward was left out")


class OwnWeights(torch.nn.Module):
    """Linear, whose weight gradients are added by what dw_builder gives."""

    def __init__(self, d_hid):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(d_hid, d_hid))
        self.saved = []
        self.run = 0

    def forward(self, x):
        return _InputOnly.apply(x, self.weight, self.saved)

    def builder(self):
        x, gradient = self.saved.pop(0)

        def runner():
            self.run += 1
            weight_gradient = gradient.t() @ x
            grad = self.weight.grad
            self.weight.grad = weight_gradient if grad is None else grad + weight_gradient

        return runner


class _InputOnly(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, saved):
        ctx.save_for_backward(x.detach(), weight)
        ctx.saved = saved
        return x @ weight.t()

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        ctx.saved.append((x, gradient))
        return gradient @ weight, None, None


def check_weight_gradients_of_one_s_own(group):
    rank = dist.get_rank(group)
    for kind in [Schedule1F1B, ScheduleZBVZeroBubble]:
        torch.manual_seed(1)
        placement = [0, 1] if kind is Schedule1F1B else [0, 1, 1, 0]
        modules = [OwnWeights(8).double() for _ in placement]
        mine = {s: modules[s] for s, holder in enumerate(placement) if holder == rank}
        stages = stages_of(mine, len(placement), group, own_weights=True)
        made = kind(stages[0] if len(stages) == 1 else stages, 4, loss_fn=torch.nn.MSELoss())
        x = torch.randn(8, 8, dtype=torch.float64, requires_grad=True)
        has_last = any(stage.is_last for stage in stages)
        has_first = any(stage.is_first for stage in stages)
        made.step(*((x,) if has_first else ()), **({"target": x.detach()} if has_last else {}))
        gradients = {s: module.weight.grad for s, module in mine.items()}
        assert all(module.run == 4 for module in mine.values())
        weights = [module.weight.detach().requires_grad_() for module in modules]
        output = functools.reduce(lambda value, weight: value @ weight.t(), weights, x.detach())
        torch.nn.MSELoss()(output, x.detach()).backward()
        for stage, gradient in gradients.items():
            torch.testing.assert_close(gradient, weights[stage].grad)


def check_outputs_may_be_anything(group):
    class Named(torch.nn.Module):
        def forward(self, x):
            return {"twice": 2 * x, "note": "as it is"}

    rank = dist.get_rank(group)
    module = Named() if rank == 1 else torch.nn.Linear(4, 4)
    (stage,) = stages_of({rank: module}, 2, group)

    def loss(output, target, *, weight):
        return weight * (output["twice"] - target).square().mean()

    schedule = ScheduleGPipe(stage, 2, loss_fn=loss)
    x = torch.randn(6, 4)
    ends = {"target": x} if stage.is_last else {}
    output = schedule.step(*placed(stage, x), **ends, loss_kwargs={"weight": 3.0})
    if stage.is_last:
        assert output["note"] == "as it is" and output["twice"].shape == (6, 4)
    assert schedule.step(*placed(stage, x), **ends, return_outputs=False,
                         loss_kwargs={"weight": 3.0}) is None  # fmt: skip


def check_tied_weights_have_one_gradient(group):
    rank = dist.get_rank(group)
    torch.manual_seed(rank)  # Different at first: the first stage's counts.
    module = torch.nn.Linear(6, 6, bias=False)
    (stage,) = stages_of({rank: module}, 2, group)
    stage.tie("weight", module.weight)
    schedule = Schedule1F1B(stage, 4, loss_fn=torch.nn.MSELoss(reduction="sum"))
    weight = torch.nn.Parameter(_linear_of(0).weight.detach().clone())
    x = torch.randn(8, 6, generator=torch.Generator().manual_seed(7))
    for _ in range(2):
        schedule.step(*placed(stage, x), **({"target": x} if stage.is_last else {}))
        ((x @ weight.t() @ weight.t()) - x).square().sum().backward()
    assert torch.equal(module.weight, weight)
    torch.testing.assert_close(module.weight.grad, weight.grad)


def _linear_of(seed):
    torch.manual_seed(seed)
    return torch.nn.Linear(6, 6, bias=False)


test_check = ranks.tests_of(__file__, WORLD_SIZE)

if __name__ == "__main__":
    ranks.main(globals())
