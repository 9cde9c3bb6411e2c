"""The tracer frontend: stages, one after the other, are the model, bit for bit."""

import copy

import pytest
import torch
from torch import nn
from traced_models import ExampleCode, MultiMLP

from penstock.pipelining import (
    SplitPoint,
    TraceError,
    annotate_split_points,
    pipe_split,
    pipeline,
)

X = torch.randn(8, 16, generator=torch.Generator().manual_seed(1))
MIDDLE = {"layers.1": SplitPoint.END}


def assert_same_step(pipe, model, *args, **kwargs):
    """Output, every gradient and every buffer, from the same seed."""
    reference = copy.deepcopy(model)
    torch.manual_seed(0)
    expected = reference(*args, **kwargs)
    expected.square().sum().backward()
    torch.manual_seed(0)
    (output,) = pipe(*args, **kwargs)
    output.square().sum().backward()
    assert torch.equal(output, expected)
    seen = set()
    for number in range(pipe.num_stages):
        stage = pipe.get_stage_module(number)
        for name, parameter in stage.named_parameters():
            assert torch.equal(parameter.grad, reference.get_parameter(name).grad), name
            seen.add(name)
        for name, buffer in stage.named_buffers():
            assert torch.equal(buffer, reference.get_buffer(name)), name
    assert seen == {name for name, _ in reference.named_parameters()}


def inputs_of(pipe):
    return [len(pipe.get_stage_module(i).stage_inputs) for i in range(pipe.num_stages)]


def mark_middle(traced):
    """A split policy: half of the operations each."""
    calls = [node for node in traced.graph.nodes if node.op == "call_function"]
    with traced.graph.inserting_before(calls[len(calls) // 2]):
        traced.graph.call_function(torch.ops.penstock.pipe_split.default)
    return traced


SPLITS = {
    "pipe_split": (True, {}, 4),
    "beginning": (False, {"split_spec": {"layers.2": SplitPoint.BEGINNING}}, 2),
    "end": (False, {"split_spec": MIDDLE}, 2),
    "within a block": (False, {"split_spec": {"layers.1.relu": SplitPoint.END}}, 2),
    "both": (True, {"split_spec": {"layers.1.relu": SplitPoint.BEGINNING}}, 5),
    "policy": (False, {"split_policy": mark_middle}, 2),
    "around nothing": (True, {"split_spec": {"layers.0": SplitPoint.BEGINNING} | MIDDLE}, 4),
    "none": (False, {}, 1),
}


@pytest.mark.parametrize(("marked", "how", "stages"), SPLITS.values(), ids=SPLITS)
def test_stages_are_the_model(marked, how, stages):
    model = MultiMLP(split=marked)
    pipe = pipeline(model, (X,), **how)
    assert pipe.num_stages == pipe.info().num_stages == stages
    assert inputs_of(pipe) == [1] * stages
    assert pipe.tied_parameters == {}
    assert_same_step(pipe, model, X)


def test_the_reference_workload_does_not_drift():
    torch.manual_seed(0)
    model = MultiMLP(width=64)
    reference = copy.deepcopy(model)
    pipe = pipeline(model, (torch.randn(8, 64),), split_spec=MIDDLE)
    for module in (pipe, reference):
        optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
        batches = torch.Generator().manual_seed(2)
        for _ in range(20):
            x = torch.randn(8, 64, generator=batches)
            optimizer.zero_grad()
            output = module(x)
            output = output[0] if module is pipe else output
            nn.functional.mse_loss(output, x, reduction="sum").backward()
            optimizer.step()
    for name, parameter in reference.named_parameters():
        stage = pipe.get_stage_module(0 if name < "layers.2" else 1)
        assert torch.equal(stage.get_parameter(name), parameter)


def test_values_go_to_later_stages_and_keywords_too():
    model = ExampleCode()
    pipe = pipeline(model, (X,), {"y": X + 1, "scale": 2.0})
    assert pipe.num_stages == 4
    assert [pipe.get_stage_module(i).stage_inputs for i in range(4)] == [
        ("x", "y", "scale"),
        ("y", "relu", "add_1"),
        ("y", "relu", "linear"),
        ("relu", "mul"),
    ]
    assert_same_step(pipe, model, X, y=X + 1, scale=2.0)


def test_a_tensor_may_be_given_twice():
    model = ExampleCode()
    pipe = pipeline(model, (X,), {"y": X, "scale": 2.0})
    assert_same_step(pipe, model, X, y=X + 1, scale=2.0)


def test_a_parameter_of_two_stages_is_tied():
    model = ExampleCode()
    pipe = pipeline(model, (X,))
    assert pipe.tied_parameters == {"mm_param0": (0, 2)}
    stages = [pipe.get_stage_module(i) for i in range(4)]
    assert stages[0].mm_param0 is stages[2].mm_param0 is model.mm_param0
    assert stages[2].tied_parameters == {"mm_param0": (0, 2)}
    assert stages[1].tied_parameters == {}
    assert_same_step(pipe, model, X)


def test_tensors_keep_their_names():
    pipe = pipeline(ExampleCode(), (X,))
    names = [set(pipe.get_stage_module(i).state_dict()) for i in range(4)]
    assert names[0] == {"mm_param0", "cval"}
    assert names[1] == {"lin0.weight", "lin0.bias"}
    assert names[2] == {"mm_param0"}  # The buffer `scratch` is not saved.
    assert dict(pipe.get_stage_module(2).named_buffers()).keys() == {"scratch"}


def test_stages_are_modules_of_split_gm():
    pipe = pipeline(MultiMLP(), (X,), split_spec=MIDDLE)
    assert [name for name, _ in pipe.split_gm.named_children()] == ["submod_0", "submod_1"]
    assert pipe.split_gm.submod_1 is pipe.get_stage_module(1)
    assert torch.equal(pipe.split_gm(X)[0], pipe(X)[0])
    with pytest.raises(ValueError, match="stage_idx is 2, must be in 0 to 1"):
        pipe.get_stage_module(2)


def test_stages_print_as_python(capsys):
    pipe = pipeline(MultiMLP(), (X,), split_spec=MIDDLE)
    pipe.print_readable()
    printed = capsys.readouterr().out
    assert printed.count("def forward(self, ") == 2
    assert "# stage 1" in printed
    assert "layers_2_net1_weight" in printed


def test_batches_may_have_other_sizes():
    model = ExampleCode()
    pipe = pipeline(model, (X,), {"y": X, "scale": 2.0})
    for rows in (1, 3, 20):
        x = torch.randn(rows, 16)
        assert_same_step(copy.deepcopy(pipe), model, x, y=x, scale=2.0)


class Reshaping(nn.Module):
    """The sizes of its input are in all its stages."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(16, 16), nn.Linear(16, 16)
        self.register_buffer("frequency", torch.arange(4.0))

    def forward(self, x):
        batch, length = x.shape[:2]
        with torch.no_grad():
            angles = torch.arange(length).unsqueeze(1) * self.frequency
            cos = angles.cos()
        mask = torch.ones(length, length).tril()
        x = self.first(x)
        pipe_split()
        x = x.view(batch, length, 4, 4) * cos.unsqueeze(1)
        x = (mask @ x.flatten(2)).view(batch * length, 16)
        pipe_split()
        return self.last(x).view(batch, length, -1) * cos.mean()


def test_what_is_made_of_sizes_and_constants_is_made_again():
    model = Reshaping()
    pipe = pipeline(model, (torch.randn(3, 5, 16),))
    # The last stage has no tensor that is as long as the batch, so one comes along.
    assert inputs_of(pipe) == [1, 1, 2]
    assert_same_step(copy.deepcopy(pipe), model, torch.randn(3, 5, 16))
    assert_same_step(pipe, model, torch.randn(2, 7, 16))


class Lists(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(16, 18), nn.Linear(18, 4)

    def forward(self, x):
        a, b, c = self.first(x).split(6, dim=1)
        parts = self.first(x).chunk(3, dim=1)
        pipe_split()
        x = torch.cat([b, a, c], dim=1) + torch.cat(parts, dim=1)
        return {"logits": self.last(x), "sizes": [x.sum(), 3]}


def test_lists_cross_item_by_item_and_results_are_flat():
    model = Lists()
    pipe = pipeline(model, (X,))
    assert inputs_of(pipe) == [1, 6]
    output, expected = pipe(X), model(X)
    assert torch.equal(output[0], expected["logits"])
    assert torch.equal(output[1], expected["sizes"][0])
    assert output[2:] == (3,)


class InPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x):
        x = self.first(x)
        pipe_split()
        x.mul_(2)
        x[:, :4].relu_()
        return self.last(x)


def test_a_stage_may_write_to_what_it_takes():
    model = InPlace()
    pipe = pipeline(model, (X,))
    assert_same_step(pipe, model, X)
    taken = pipe.get_stage_module(0)(X).detach().requires_grad_()
    before = taken.detach().clone()
    pipe.get_stage_module(1)(taken).sum().backward()  # As the runtime runs it.
    assert torch.equal(taken, before)
    assert taken.grad is not None


class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(16, 16), nn.Linear(16, 16)
        self.norm, self.drop = nn.BatchNorm1d(16), nn.Dropout(0.5)

    def attend(self, x):
        p = 0.5 if self.training else 0.0
        return nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=p)

    def forward(self, x):
        x = self.drop(self.norm(self.first(x)))
        pipe_split()
        x = self.attend(x.unsqueeze(0)).squeeze(0)
        x = nn.functional.dropout(self.last(x), 0.25, self.training)
        return self.drop(x)


def test_dropout_and_batch_norm_follow_the_mode():
    model = Noisy()
    pipe = pipeline(model, (X,))
    assert_same_step(pipe, model, X)
    model.train()  # The stages have its buffers, so both begin from the same.
    for training in (False, True, False):
        model.train(training)
        pipe.train(training)
        assert_same_step(copy.deepcopy(pipe), model, X)
    batches = model.norm.num_batches_tracked.item()
    model.eval()(X)
    pipe.eval()(X)
    assert model.norm.num_batches_tracked.item() == batches


def test_modes_are_those_of_the_modules():
    model = Noisy()
    pipe = pipeline(model, (X,))
    pipe.eval()
    pipe.get_stage_module(1).get_submodule("drop").train()
    torch.manual_seed(0)
    (first,) = pipe(X)
    assert not torch.equal(first, pipe(X)[0])


def test_a_trace_for_evaluation_says_so():
    model = Noisy().eval()
    pipe = pipeline(model, (X,))
    assert torch.equal(pipe(X)[0], model(X))
    assert not pipe.get_stage_module(0).training
    with pytest.raises(ValueError, match=r"stays in evaluation mode.*after model.train\(\)"):
        pipe.train()
    pipeline(MultiMLP().eval(), (X,)).train()  # Nothing there to turn.


def test_autocast_works_around_stages():
    model = MultiMLP()
    pipe = pipeline(model, (X,), split_spec=MIDDLE)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        (output,) = pipe(X)
        assert output.dtype == torch.bfloat16
        assert torch.equal(output, model(X))


class Mixed(nn.Module):
    """With autocast in its forward; and a split point there."""

    def __init__(self, split=False):
        super().__init__()
        self.first, self.last = nn.Linear(16, 16), nn.Linear(16, 16)
        self.drop, self.split = nn.Dropout(0.5), split

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            x = self.drop(self.first(x))
            if self.split:
                pipe_split()
            x = torch.relu(x)
        pipe_split()
        return self.last(x.float())


def test_blocks_under_autocast_stay_whole():
    model = Mixed()
    pipe = pipeline(model, (X,))
    assert pipe.num_stages == 2
    assert_same_step(pipe, model, X)
    with pytest.raises(ValueError, match=r"stays in training mode.*under autocast"):
        pipe.eval()
    assert torch.equal(pipeline(model.eval(), (X,))(X)[0], model(X))
    with pytest.raises(ValueError, match="a split point is in a block"):
        pipeline(Mixed(split=True), (X,))


def test_split_points_can_stay():
    model = MultiMLP()
    annotate_split_points(model, {"layers.1": SplitPoint.BEGINNING, "layers.3": SplitPoint.END})
    pipe = pipeline(model, (X,))
    assert pipe.num_stages == 2  # Behind the last layer is nothing.
    assert torch.equal(pipe(X)[0], model(X))


def test_the_model_is_left_as_it_was():
    model = MultiMLP()
    before = {name: set(vars(module)) for name, module in model.named_modules()}
    pipeline(model, (X,), split_spec=MIDDLE)
    assert {name: set(vars(module)) for name, module in model.named_modules()} == before


class Branching(nn.Module):
    def forward(self, x):
        if x.sum() > 0:
            return x
        return -x


def test_what_cannot_be_traced_is_told_with_the_way_out():
    with pytest.raises(TraceError, match="Branching cannot be traced") as refused:
        pipeline(Branching(), (X,))
    where, way_out = refused.value.notes
    assert "pipelining_tracer_test.py" in where
    assert "if x.sum() > 0:" in where
    assert "PipelineStage" in way_out
    assert isinstance(refused.value, (RuntimeError, ValueError))


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(16, 16)

    def forward(self, x):
        x = self.first(x)
        many = (x > 0).sum().item()
        pipe_split()
        return self.first(x) * many


@pytest.mark.parametrize(
    ("message", "how"),
    {
        r"'layer.1', which is no submodule of MultiMLP; the nearest: layers.1": {
            "split_spec": {"layer.1": SplitPoint.END}
        },
        "there are a split_spec and a split_policy": {
            "split_spec": MIDDLE,
            "split_policy": mark_middle,
        },
    }.items(),
)
def test_splits_that_cannot_be_are_named(message, how):
    with pytest.raises(ValueError, match=message):
        pipeline(MultiMLP(), (X,), **how)


def test_split_points_have_a_type():
    with pytest.raises(TypeError, match=r"split_spec has 1, must be SplitPoint\.BEGINNING"):
        pipeline(MultiMLP(), (X,), split_spec={"layers.1": 1})


def test_only_tensors_cross():
    with pytest.raises(ValueError, match=r"stage 1 needs item, a .* that stage 0 makes"):
        pipeline(Counting(), (X,))


@pytest.mark.parametrize(
    ("message", "args", "kwargs"),
    [
        (r"keyword arguments y, scale, it is given y", (X,), {"y": X}),
        (r"kwargs\['scale'\] was 2.0 when the model was traced, it is 3.0", (X,), {"scale": 3.0}),
        (r"args\[0\] has shape \(8, 15\), the traced model takes \(any, 16\)", (X[:, 1:],), {}),
        (r"args\[0\] has shape \(16,\)", (X[0],), {}),
        ("it is given", (X, [X]), {}),
        ("x is given by position and by name", (X,), {"x": X}),
    ],
)
def test_arguments_are_like_the_traced_ones(message, args, kwargs):
    pipe = pipeline(ExampleCode(), (X,), {"y": X, "scale": 2.0})
    if len(args) == 1 and set(kwargs) != {"y"}:
        kwargs = {"y": X, "scale": 2.0} | kwargs
    with pytest.raises(ValueError, match=message):
        pipe(*args, **kwargs)


def test_later_stages_take_what_the_stage_before_gives():
    stage = pipeline(ExampleCode(), (X,)).get_stage_module(1)
    with pytest.raises(ValueError, match=r"takes 2 tensors \(relu, add_1\), it is given 1"):
        stage(X)
    assert torch.equal(stage(X, X, y=X)[1], stage(X, X)[1])  # Its rank may have the first stage.


def test_pipe_split_does_nothing_when_a_model_runs():
    model = MultiMLP(split=True)
    assert torch.equal(model(X), model(X))
