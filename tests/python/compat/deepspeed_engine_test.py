"""What scripts for DeepSpeed call on an engine, on two ranks, against one process's numbers."""

import copy
import math
import os
import pickle

import pytest
import ranks
import torch
import torch.distributed as dist

import penstock
from penstock.utils.tensor_fragment import (
    safe_get_full_fp32_param,
    safe_get_full_grad,
    safe_get_full_optimizer_state,
    safe_get_local_fp32_param,
    safe_get_local_grad,
    safe_get_local_optimizer_state,
    safe_set_full_fp32_param,
    safe_set_full_grad,
    safe_set_full_optimizer_state,
    safe_set_local_optimizer_state,
    safe_update_full_grad_vectorized,
)

WORLD_SIZE = 2
TYPES = ({}, {"bf16": {"enabled": True}}, {"fp16": {"enabled": True, "loss_scale": 8}})


class Net(torch.nn.Module):
    """With a frozen parameter, a name of its own, and a method that scripts call."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(5, 7)
        self.last = torch.nn.Linear(7, 3)
        self.frozen = torch.nn.Parameter(torch.ones(3), requires_grad=False)
        self.title = "net"

    def forward(self, x):
        return self.last(self.first(x).tanh()) * self.frozen

    def doubled(self):
        return 2 * self.first.in_features


def net():
    torch.manual_seed(11)
    return Net()


def start(stage, *, model=None, accumulation=1, optimizer=("SGD", {"lr": 0.1}), **options):
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": accumulation,
        "optimizer": {"type": optimizer[0], "params": optimizer[1]},
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 3},
        **options,
    }
    return penstock.initialize(model=net() if model is None else model, config=config)[0]


def inputs_of(number, rank=None, dtype=torch.float):
    rank = dist.get_rank() if rank is None else rank
    generator = torch.Generator().manual_seed(100 * number + rank)
    return torch.randn(2, 5, generator=generator).to(dtype)


def gradients_of(losses, model):
    """Of one process: the sum of the losses' gradients, by name."""
    model.zero_grad()
    sum(losses).backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.requires_grad}


def full_gradients(engine):
    found = {name: safe_get_full_grad(p) for name, p in engine.module.named_parameters()}
    assert found.pop("frozen") is None
    return found


def check_an_engine_knows_its_place(group):
    engine = start(0)
    assert (engine.world_size, engine.global_rank) == (WORLD_SIZE, dist.get_rank())
    os.environ["LOCAL_RANK"] = "5"  # As a launcher says it; the processes' own is put back.
    try:
        assert start(0).local_rank == 5
    finally:
        os.environ["LOCAL_RANK"] = str(engine.local_rank)


def check_full_gradients_states_and_weights_are_those_of_one_process(group):
    for stage in range(4):
        engine = start(stage, optimizer=("Adam", {"lr": 0.01}))
        plain = net()
        optimizer = torch.optim.AdamW(
            [p for p in plain.parameters() if p.requires_grad], lr=0.01, weight_decay=0
        )
        for step in range(2):
            engine.backward(engine(inputs_of(step)).square().mean())
            losses = [plain(inputs_of(step, rank)).square().mean() / 2 for rank in range(2)]
            expected = gradients_of(losses, plain)
            for name, gradient in full_gradients(engine).items():
                torch.testing.assert_close(gradient, expected[name])
            engine.step()
            optimizer.step()
        named = dict(engine.module.named_parameters())
        assert safe_get_full_fp32_param(named["frozen"]) is None
        for name, p in plain.named_parameters():
            if not p.requires_grad:
                continue
            torch.testing.assert_close(safe_get_full_fp32_param(named[name]), p.detach())
            for key in ("exp_avg", "exp_avg_sq"):
                state = safe_get_full_optimizer_state(named[name], key)
                torch.testing.assert_close(state, optimizer.state[p][key])
        assert safe_get_full_grad(named["first.weight"]) is None  # step() has used it.


def check_what_is_set_in_full_is_got_in_full_and_is_stepped_from(group):
    for stage in range(4):
        for options in TYPES:
            engine = start(stage, optimizer=("Adam", {"lr": 0.01}), **options)
            dtype = next(engine.module.parameters()).dtype
            engine.backward(engine(inputs_of(0, dtype=dtype)).float().square().mean())
            engine.step()
            engine.backward(engine(inputs_of(1, dtype=dtype)).float().square().mean())
            torch.manual_seed(7)
            given = {}
            for name, p in engine.module.named_parameters():
                if not p.requires_grad:
                    continue
                gradient = torch.rand(p.shape).to(safe_get_full_grad(p).dtype)
                given[name] = [torch.rand(p.shape), torch.rand(p.shape), gradient]
                safe_set_full_fp32_param(p, given[name][0])
                safe_set_full_optimizer_state(p, given[name][1], "exp_avg")
                safe_set_full_grad(p, gradient)
            reference = {}
            for name, p in engine.module.named_parameters():
                if not p.requires_grad:
                    continue
                weight, mean, gradient = given[name]
                assert torch.equal(safe_get_full_fp32_param(p), weight)
                assert torch.equal(safe_get_full_optimizer_state(p, "exp_avg"), mean)
                assert torch.equal(safe_get_full_grad(p), gradient)
                square = safe_get_full_optimizer_state(p, "exp_avg_sq")
                mean = 0.9 * mean + 0.1 * gradient.float()
                square = 0.999 * square + 0.001 * gradient.float() ** 2
                by = (mean / (1 - 0.9**2)) / ((square / (1 - 0.999**2)).sqrt() + 1e-8)
                reference[name] = weight - 0.01 * by
            engine.step()
            for name, values in engine.module_state_dict().items():
                if name in reference:
                    p = dict(engine.module.named_parameters())[name]
                    torch.testing.assert_close(
                        safe_get_full_fp32_param(p), reference[name], rtol=1e-4, atol=1e-5
                    )
                    assert torch.equal(values, safe_get_full_fp32_param(p).to(dtype))


def check_local_parts_make_up_the_whole(group):
    engine = start(3, optimizer=("Adam", {"lr": 0.01}))
    engine.backward(engine(inputs_of(0)).square().mean())
    for p in filter(lambda each: each.requires_grad, engine.module.parameters()):
        parts = [None] * WORLD_SIZE
        dist.all_gather_object(parts, safe_get_local_grad(p), group=group)
        assert torch.equal(torch.cat(parts), safe_get_full_grad(p).flatten())
    engine.step()
    updated = 0
    for p in filter(lambda each: each.requires_grad, engine.module.parameters()):
        mine = safe_get_local_optimizer_state(p, "exp_avg")
        assert mine.shape == safe_get_local_fp32_param(p).shape
        updated += mine.numel()
        safe_set_local_optimizer_state(p, torch.full_like(mine, 3.0), "exp_avg")
        whole = safe_get_full_optimizer_state(p, "exp_avg")
        assert torch.equal(whole, torch.full(p.shape, 3.0))
    assert 0 < updated < 66


def check_gradients_are_replaced_one_after_the_other(group):
    engine = start(2)
    engine.backward(engine(inputs_of(0)).square().mean())
    parameters = [p for p in engine.module.parameters() if p.requires_grad]
    before = [safe_get_full_grad(p) for p in parameters]
    safe_update_full_grad_vectorized(parameters, lambda gradient, p: gradient * 2)
    for p, gradient in zip(parameters, before, strict=True):
        assert torch.equal(safe_get_full_grad(p), gradient * 2)


def check_sums_over_replicas(group):
    for stage in range(4):
        mean, total = start(stage), start(stage, gradient_allreduce_op="sum")
        for engine in (mean, total):
            engine.backward(engine(inputs_of(0)).square().mean())
        expected = full_gradients(mean)
        for name, gradient in full_gradients(total).items():
            assert torch.equal(gradient, 2 * expected[name])
        prescaled = start(stage, prescale_gradients=True, gradient_predivide_factor=2.0)
        prescaled.backward(prescaled(inputs_of(0)).square().mean())
        for name, gradient in full_gradients(prescaled).items():
            assert torch.equal(gradient, expected[name])


def check_a_script_owns_the_boundary(group):
    for stage in range(4):
        counted, owned = start(stage, accumulation=3), start(stage, accumulation=3)
        free = start(stage, accumulation=3, managed_gradient_accumulation=False)
        assert owned.managed_gradient_accumulation()
        assert not free.managed_gradient_accumulation()
        for number in range(3):
            loss = counted(inputs_of(number)).square().mean()
            counted.backward(loss)
            counted.step()
            owned.set_gradient_accumulation_boundary(number == 2)
            assert owned.is_gradient_accumulation_boundary() == (number == 2)
            owned.backward(owned(inputs_of(number)).square().mean())
            # A loss that is divided already.
            third = free(inputs_of(number)).square().mean() / 3
            returned = free.backward(third, scale_wrt_gas=False)
            assert returned.item() == pytest.approx(loss.item() / 3)
        owned.step()
        free.step()
        expected = counted.module_state_dict()
        for engine in (owned, free):
            for name, values in engine.module_state_dict().items():
                torch.testing.assert_close(values, expected[name])
        assert (counted.global_steps, owned.global_steps, free.global_steps) == (1, 1, 1)
        assert counted.micro_steps == owned.micro_steps == 3
        assert counted.global_samples == free.global_samples == 12
        with pytest.raises(penstock.ConfigError, match="every step"):
            free.set_gradient_accumulation_boundary(True)
        free.backward(free(inputs_of(0)).square().mean())
        free.step()
        assert (free.global_steps, free.global_samples) == (2, 16)


def check_no_sync(group):
    for stage in range(2):
        engine, plain = start(stage), net()
        with engine.no_sync():
            for number in range(2):
                engine.backward(engine(inputs_of(number)).square().mean())
            inside = r"no_sync\(\) inside no_sync"
            with pytest.raises(penstock.Error, match=inside), engine.no_sync():
                pass
            with pytest.raises(penstock.Error, match=r"step\(\) inside no_sync"):
                engine.step()
        engine.backward(engine(inputs_of(2)).square().mean())
        losses = [
            plain(inputs_of(number, rank)).square().mean() / 2
            for number in range(3)
            for rank in range(2)
        ]
        expected = gradients_of(losses, plain)
        for name, gradient in full_gradients(engine).items():
            torch.testing.assert_close(gradient, expected[name])
        engine.step()
        assert engine.global_steps == 1
    for stage in (2, 3):
        engine = start(stage)
        with pytest.raises(AssertionError, match="use set_gradient_accu"), engine.no_sync():
            pass


def check_several_backwards_of_one_forward(group):
    for stage in range(4):
        engine, plain = start(stage), net()
        output = engine(inputs_of(0))
        engine.set_gradient_accumulation_boundary(False)
        engine.backward(output[:, 0].mean(), retain_graph=True)
        engine.set_gradient_accumulation_boundary(True)
        engine.backward(output[:, 1:].square().mean())
        expected = gradients_of(
            [
                (out[:, 0].mean() + out[:, 1:].square().mean()) / 2
                for out in (plain(inputs_of(0, rank)) for rank in range(2))
            ],
            plain,
        )
        for name, gradient in full_gradients(engine).items():
            torch.testing.assert_close(gradient, expected[name])
        engine.step()


def check_backwards_of_the_script(group):
    for stage in range(4):
        engine, plain = start(stage), net()
        out = engine(inputs_of(0))
        out.backward(torch.ones_like(out))  # No scalar.
        theirs = [plain(inputs_of(0, rank)).sum() / 2 for rank in range(2)]
        expected = gradients_of(theirs, plain)
        for name, gradient in full_gradients(engine).items():
            torch.testing.assert_close(gradient, expected[name])
        engine.step()


def check_two_engines_train_beside_each_other_and_through_each_other(group):
    for stage in (1, 3):
        generator, judge = start(stage), start(stage, model=torch.nn.Linear(3, 1))
        loss = judge(generator(inputs_of(0))).square().mean()
        loss.backward()
        first, second = net(), copy.deepcopy(torch.nn.Linear(3, 1))
        second.load_state_dict(judge.module_state_dict())
        both = torch.nn.Sequential(first, second)
        expected = gradients_of(
            [both(inputs_of(0, rank)).square().mean() / 2 for rank in range(2)], both
        )
        for name, gradient in full_gradients(generator).items():
            torch.testing.assert_close(gradient, expected[f"0.{name}"])
        for engine in (generator, judge):
            engine.step()
            engine.destroy()


def check_a_module_that_was_destroyed_gets_another_engine(group):
    for stage in range(4):
        model = net()
        engine = start(stage, model=model)
        engine.backward(engine(inputs_of(0)).square().mean())
        engine.step()
        state = engine.module_state_dict()
        engine.destroy()
        del engine
        again = start(stage, model=model)
        for name, values in again.module_state_dict().items():
            assert torch.equal(values, state[name])
        again.backward(again(inputs_of(1)).square().mean())
        again.step()


def check_names(group):
    for stage in range(4):
        engine = start(stage, accumulation=2, gradient_clipping=0.5, steps_per_print=7)
        assert engine.title == "net"  # Of the module.
        assert engine.doubled() == 10
        with pytest.raises(AttributeError, match="nothing"):
            engine.nothing  # noqa: B018
        assert engine.zero_optimization() == (stage > 0)
        assert engine.zero_optimization_partition_gradients() == (stage > 1)
        assert engine.zero_optimization_partition_weights() == (stage > 2)
        assert engine.get_batch_info() == (8, 2, 2)
        assert (engine.gradient_clipping(), engine.steps_per_print()) == (0.5, 7)
        assert (engine.optimizer_name(), engine.optimizer_params()) == ("sgd", {"lr": 0.1})
        assert (engine.scheduler_name(), engine.scheduler_params()) == (None, {})
        assert (engine.fp16_enabled(), engine.bfloat16_enabled()) == (False, False)
        assert (engine.get_lr(), engine.get_mom(), engine.get_type()) == ([0.1], [0], [None])
        engine.set_lr(0.25)
        assert engine.get_lr() == [0.25]
        engine.empty_partition_cache()
        engine.train()
        assert engine.module.training
        engine.eval()
        assert not engine.module.training
        engine.set_train_batch_size(4)
        assert engine.get_batch_info() == (4, 2, 1)
        engine.set_train_micro_batch_size(3)
        assert engine.get_batch_info() == (6, 3, 1)
        with pytest.raises(ValueError, match="no multiple of"):
            engine.set_train_batch_size(7)
        engine.backward(engine(inputs_of(0)).square().mean())
        with pytest.raises(penstock.Error, match="inside a step"):
            engine.set_train_batch_size(12)
        engine.step()
        assert engine.tput_timer.avg_samples_per_sec() == 0
        engine.backward(engine(inputs_of(0)).square().mean())
        engine.step()
        assert engine.tput_timer.avg_samples_per_sec() > 0


def check_getters_say_what_the_configuration_says(group):
    engine = start(
        3,
        zero_allow_untested_optimizer=True,
        prescale_gradients=True,
        gradient_predivide_factor=2.0,
        wall_clock_breakdown=True,
    )
    assert engine.config["prescale_gradients"]
    assert not engine.postscale_gradients()
    assert engine.gradient_predivide_factor() == 2.0
    assert engine.wall_clock_breakdown()
    assert engine.zero_allow_untested_optimizer()
    assert engine.zero_param_persistence_threshold() == 3
    assert engine.zero_prefetch_bucket_size() == 50_000_000
    assert engine.zero_reduce_bucket_size() == 1 << 20  # What is gone by, not DeepSpeed's default.
    assert engine.zero_overlap_comm()
    assert engine.zero_offload_optimizer() is None
    assert not engine.zero_cpu_offload()
    assert engine.communication_data_type is None
    assert not engine.autotuning_enabled()
    assert (engine.get_data_parallel_rank(), engine.get_model_parallel_rank()) == (group.rank(), 0)
    assert (engine.mp_world_size, engine.mpu, engine.has_moe_layers) == (1, None, False)
    assert engine.is_map_style_dataset([1, 2])
    assert not engine.is_iterable_style_dataset([1, 2])
    assert engine.enable_backward_allreduce
    with pytest.raises(penstock.ConfigError, match=r"no_sync\(\)"):
        engine.enable_backward_allreduce = False
    with pytest.raises(AttributeError, match="`penstock plan` finds a layout"):
        engine.autotuning_metric  # noqa: B018


def check_a_module_state_dict_goes_into_another_engine(group):
    for stage in range(4):
        for options in TYPES[:2]:
            engine = start(stage, **options)
            dtype = next(engine.module.parameters()).dtype
            engine.backward(engine(inputs_of(0, dtype=dtype)).float().square().mean())
            engine.step()
            state = engine.module_state_dict(prefix="a.", exclude_frozen_parameters=True)
            assert "a.frozen" not in state
            state = pickle.loads(pickle.dumps(engine.module_state_dict()))
            torch.manual_seed(99)
            other = start(stage, model=Net(), **options)
            other.load_module_state_dict({"module": state})
            for name, values in other.module_state_dict().items():
                assert torch.equal(values, state[name])
            for each in (engine, other):  # Masters have followed, up to what is rounded away.
                each.backward(each(inputs_of(1, dtype=dtype)).float().square().mean())
                each.step()
            tolerance = {} if dtype is torch.float else {"rtol": 2**-7, "atol": 1e-3}
            for name, values in other.module_state_dict().items():
                torch.testing.assert_close(values, engine.module_state_dict()[name], **tolerance)


def check_compile(group):
    engine = start(2)
    assert not engine.is_compiled
    engine.compile(backend="eager")
    assert engine.is_compiled
    engine.backward(engine(inputs_of(0)).square().mean())
    engine.step()
    with pytest.raises(penstock.ConfigError, match="take stage 2"):
        start(3).compile(backend="eager")


def check_an_overflow_is_told_and_unmanaged_steps_go_on(group):
    engine = start(2, fp16={"enabled": True, "initial_scale_power": 4, "hysteresis": 1})
    scale = math.inf if dist.get_rank() == 0 else 1.0
    engine.backward(engine(inputs_of(0, dtype=torch.half)).float().mean() * scale)
    engine.step()
    assert engine.optimizer.overflow  # On both.
    assert engine.get_loss_scale() == 8


test_check = ranks.tests_of(__file__, WORLD_SIZE)

if __name__ == "__main__":
    ranks.main(globals())
