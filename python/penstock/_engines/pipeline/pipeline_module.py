"""A model as a list of layers, of which a rank has those of its stages.

    model = PipelineModule(layers, num_stages=2, loss_fn=torch.nn.functional.cross_entropy)
    engine, _, _, _ = penstock.initialize(model=model, config="config.json")

Source: deepspeed.runtime.pipe.module; what is different: docs/migrating_from_deepspeed.md.
"""

from __future__ import annotations

from penstock import _torch  # noqa: F401  (Says what to install.)

# isort: split
import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from penstock import _arguments, _planning
from penstock._calls import for_all_ranks
from penstock._compatibility import published_as
from penstock._distributed import init_distributed
from penstock._engines.parameters.replicas import Replicas
from penstock._engines.parameters.spread_module import Spreading
from penstock._engines.parameters.zero_init import Init
from penstock._engines.parameters.zero_parameter import ZeroParameter, place_of
from penstock._engines.pipeline.engine_program import Chosen, placement_of, title_of
from penstock._engines.pipeline.instruction_handlers import Handler, Handlers
from penstock._engines.pipeline.layer_specs import LayerSpec, TiedLayerSpec
from penstock._engines.pipeline.pipeline_stage import Checkpointing, Layer, Seeds, Stage
from penstock._engines.pipeline.tied_layers import TiedLayers
from penstock._engines.pipeline.topology import PipeDataParallelTopology, ProcessTopology
from penstock._engines.ranks.process_groups import connect, resolve, telling_who_connects
from penstock._pipe_schedule import PipeInstruction
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock._runtime import Communicator

__all__ = ["LayerSpec", "PipelineModule", "TiedLayerSpec"]


class PipelineModule(torch.nn.Module):
    """The layers of this rank's stages, and what all ranks know of all layers.

    layers: each a LayerSpec, a TiedLayerSpec, a module, or a function, in the model's order.  Each
        is called with what the one before returned: a tensor or a tuple of tensors, as one value.
    num_stages: how many ranks share a replica; topology says it as well, and their replicas.
    loss_fn: of the last layer's output and the labels; a scalar.  None: the last layer's output is
        the loss.
    seed_layers: each layer is made, and each of its forwards run, from a seed of its own, made of
        base_seed, its index, and the number of the microbatch.  Else every rank makes all layers in
        order and keeps its own, so that one seed gives the same weights with any number of stages.
    seed_fn: sets a seed; torch.manual_seed if it is None.
    partition_method: "uniform", as many layers as possible alike; "parameters", the largest stage
        has as few trainable parameters as possible; "type:REGEX", the layers whose class or
        function matches are spread evenly; or the bounds: the first layer of each stage, then the
        number of layers.
    activation_checkpoint_interval: layers whose activations are computed again together; 0: all are
        kept.  activation_checkpoint_func: does it in place of torch.utils.checkpoint;
        checkpointable_layers: names of the classes that may be.
    dynamic_shape: taken, and not used: shapes may always change.
    schedule: a schedule's name, a file with a program, a program, or a PipeSchedule's class;
        stages_per_rank: how many stages a rank has; None: as many as the schedule likes.
    handlers: for a schedule that is a PipeSchedule's class: functions by the class of an
        instruction.  Each is called with the instruction, and a function that runs the forward or
        backward that it is derived from, which it has to call once.

    Made in penstock.zero.Init, it spreads each layer over the replicas of its stage before it makes
    the next.

    Parameters have DeepSpeed's names: "3.weight" of layer 3, "tied_modules.KEY.weight" of tied
    ones.

    Raises ConfigError for layers that cannot be cut into the stages, and sizes that do not fit.
    """

    @for_all_ranks("penstock.pipe", when="inside zero.Init", name="PipelineModule()")
    def __init__(
        self,
        layers: Iterable[Any],
        num_stages: int | None = None,
        topology: ProcessTopology | None = None,
        loss_fn: Callable[..., Any] | None = None,
        seed_layers: bool = False,
        seed_fn: Callable[[int], Any] | None = None,
        base_seed: int = 1234,
        partition_method: str | Sequence[int] = "parameters",
        activation_checkpoint_interval: int = 0,
        activation_checkpoint_func: Callable[..., Any] | None = None,
        checkpointable_layers: Sequence[str] | None = None,
        dynamic_shape: bool = True,
        *,
        schedule: Chosen | None = None,
        stages_per_rank: int | None = None,
        handlers: Mapping[type[PipeInstruction], Handler] | None = None,
    ) -> None:
        super().__init__()
        del dynamic_shape
        self.loss_fn = loss_fn
        self._layer_specs = list(layers)
        init_distributed()
        with telling_who_connects(resolve(None)):
            self._check_layers()
            self._topology = _topology(num_stages, topology)
            self.global_rank = dist.get_rank()
            self.num_stages = self._topology.get_dim("pipe")
            self.stage_id: int = self._topology.get_coord(self.global_rank).pipe
            self._partition_method = partition_method
            self.activation_checkpoint_interval = _arguments.integer(
                "activation_checkpoint_interval", activation_checkpoint_interval
            )
            self._checkpoint_func = activation_checkpoint_func
            self._checkpointable = (
                None if checkpointable_layers is None else frozenset(checkpointable_layers)
            )
            self.seed_layers = seed_layers
            self._seeds = Seeds(base_seed, seed_fn or torch.manual_seed) if seed_layers else None
            self._random_state = torch.get_rng_state()  # Layers that are made again begin with it.
            self._handlers = Handlers(handlers or {})
            self._schedule = schedule
            self._stages_per_rank = stages_per_rank
            placement = placement_of(
                schedule or "1f1b", ranks=self.num_stages, stages_per_rank=stages_per_rank
            )
        # From here to initialize()'s connect(), a rank that hears of another's failure tells it
        # once, wherever that is: so all of them have met as often.
        communicator = None if Init.running() is None else connect(resolve(None))
        with telling_who_connects(resolve(None)):
            self._spreading = self._spreading_of_init(communicator)
            self._build(placement)

    def set_checkpoint_interval(self, interval: int) -> None:
        """activation_checkpoint_interval of the engine that is made of it from now on."""
        self.activation_checkpoint_interval = _arguments.integer("interval", interval)

    def topology(self) -> ProcessTopology:
        """The axes of ranks."""
        return self._topology

    def forward(self, value: Any) -> Any:
        """The model's output, on a rank that has all layers.

        Raises RuntimeError on others: there, PipelineEngine.train_batch() and eval_batch() run it.
        """
        if len(self._here) < len(self._layer_specs):
            raise RuntimeError(
                f"this rank has layers {', '.join(map(str, self._here))} of "
                f"{len(self._layer_specs)}: the engine's train_batch() and eval_batch() run all"
            )
        for index in range(len(self._layer_specs)):
            value = self._here[index].call(value)
        return value

    def _use_schedule(self, schedule: Chosen, stages_per_rank: int | None) -> None:
        """Has the stages where a schedule wants them: those of other layers are made anew.

        Raises ConfigError where the module was made for another schedule.
        """
        if self._schedule is not None and (schedule, stages_per_rank) != (
            self._schedule,
            self._stages_per_rank,
        ):
            raise ConfigError(
                f"the configuration has schedule {title_of(schedule)}, and the PipelineModule was "
                f"made for {title_of(self._schedule)}: say it in one place"
            )
        self._schedule, self._stages_per_rank = schedule, stages_per_rank
        placement = placement_of(schedule, ranks=self.num_stages, stages_per_rank=stages_per_rank)
        if placement != self._rank_of_stage:
            built = {"tied_modules", *map(str, self._here)}
            for name in built & self._modules.keys():
                del self._modules[name]
            with torch.random.fork_rng(devices=[]):
                torch.set_rng_state(self._random_state)
                self._build(placement)

    def _stages(self) -> dict[int, Stage]:
        """This rank's stages, by number: modules that penstock's runtime runs."""
        checkpointing = Checkpointing(
            self.activation_checkpoint_interval, self._checkpoint_func, self._checkpointable
        )
        last = len(self._rank_of_stage) - 1
        return {
            stage: Stage(
                [self._here[i] for i in range(self.parts[stage], self.parts[stage + 1])],
                checkpointing,
                self._seeds,
                is_first=stage == 0,
                is_last=stage == last,
            )
            for stage in self._stages_here
        }

    def _tied_parameters(self, stage: int) -> dict[str, torch.nn.Parameter]:
        """The parameters, by name, that a stage here shares with stages of other ranks."""
        return self._ties.of_stage(stage, self._modules_here())

    def _tied_stages(self) -> set[int]:
        """The stages that hold a tied layer."""
        return self._ties.stages()

    def _counted_parameters(self) -> list[torch.nn.Parameter]:
        """This rank's, without those tied ones that another rank counts: all ranks', once each."""
        elsewhere = self._ties.counted_elsewhere(self.stage_id, self._modules_here())
        return [each for each in self.parameters() if id(each) not in elsewhere]

    def _parameters_by_layer(self) -> list[tuple[int, list[torch.nn.Parameter]]]:
        """This rank's layers, each with its parameters, in the order of the model.

        A parameter stands once, on the rank that counts it, in its first layer.  Those of no
        layer, like those of a loss_fn, are behind all layers: in one more for each stage.
        """
        left = {id(each) for each in self._counted_parameters()}
        found = []
        modules: list[tuple[int, torch.nn.Module]] = sorted(self._modules_here().items())
        for index, module in [*modules, (len(self._layer_specs) + self.stage_id, self)]:
            of_layer = [each for each in module.parameters() if id(each) in left]
            left.difference_update(map(id, of_layer))
            found.append((index, of_layer))
        return found

    def _saved_modules(self) -> tuple[dict[str, torch.nn.Module], frozenset[str]]:
        """This rank's modules by the prefix of their names, and the prefixes that it saves.

        A tied one has that of the first layer of its key, whose rank saves it; a loss_fn that is a
        module has "loss_fn.", and the last stage's rank saves it.
        """
        here, found = self._modules_here(), {}
        for index, module in here.items():
            spec = self._layer_specs[index]
            is_tied = isinstance(spec, TiedLayerSpec) and self._ties.is_of_first_class(spec)
            found[f"{self._ties.first(spec) if is_tied else index}."] = module
        written = found.keys() & {f"{index}." for index in here}
        if isinstance(self.loss_fn, torch.nn.Module):
            found["loss_fn."] = self.loss_fn
            if len(self._rank_of_stage) - 1 in self._stages_here:
                written.add("loss_fn.")
        return found, frozenset(written)

    def _arguments_without_effect(self) -> list[str]:
        """A line for each argument that can have none, and why."""
        if self._checkpointable is None:
            return []
        if self.activation_checkpoint_interval == 0:
            return [
                "checkpointable_layers has no effect: activation_checkpoint_interval is 0; it "
                "needs activation_checkpoint_interval >= 1"
            ]
        specs = self._layer_specs
        types = {
            (each.typename if isinstance(each, LayerSpec) else type(each)).__name__
            for each in specs
        }
        if not self._checkpointable.isdisjoint(types):
            return []
        return [
            f"checkpointable_layers has no effect: no layer is of "
            f"{', '.join(sorted(self._checkpointable)) or 'no class'}; it needs one of "
            f"{', '.join(sorted(types))}"
        ]

    def _modules_here(self) -> dict[int, torch.nn.Module]:
        return {i: each.module for i, each in self._here.items() if each.module is not None}

    def _check_layers(self) -> None:
        for index, layer in enumerate(self._layer_specs):
            if isinstance(layer, PipelineModule):
                raise TypeError(f"layers[{index}] is a PipelineModule: put its layers here instead")
            if not isinstance(layer, LayerSpec) and not callable(layer):
                raise TypeError(
                    f"layers[{index}] is {layer!r}, must be a LayerSpec, a module or a function"
                )
            _refuse_spread(f"layers[{index}]", layer)
        _refuse_spread("loss_fn", self.loss_fn)

    def _spreading_of_init(self, communicator: Communicator | None) -> Spreading | None:
        """Spreading over the replicas of this rank, where the module is made in zero.Init."""
        init = Init.running()
        if init is None or communicator is None:
            return None
        # All are past connect() when this returns: who fails from here on, all count it.
        communicator.exchange("layers to be made", "")
        ranks = self._topology.filter_match(pipe=self.stage_id)
        return init.over(Replicas(communicator, ranks))

    def _build(self, rank_of_stage: list[int]) -> None:
        """Makes the layers of this rank's stages, all of which `rank_of_stage` places."""
        if self._spreading is None:
            return self._make_layers(rank_of_stage)
        with self._spreading.replicas.telling_others(), Init.paused():
            self._make_layers(rank_of_stage)
            self._spreading.spread(self)  # Spreads what loss_fn has, too.

    def _make_layers(self, rank_of_stage: list[int]) -> None:
        self._rank_of_stage = rank_of_stage
        self.parts = self._partition(len(rank_of_stage))
        self._stages_here = [s for s, rank in enumerate(rank_of_stage) if rank == self.stage_id]
        stage_of = [
            stage
            for stage in range(len(rank_of_stage))
            for _ in range(self.parts[stage], self.parts[stage + 1])
        ]
        self._ties = TiedLayers(self._layer_specs, stage_of, rank_of_stage)
        self.tied_modules = torch.nn.ModuleDict()
        self._here: dict[int, Layer] = {}
        firsts: dict[str, torch.nn.Module] = {}
        held = {
            spec.key
            for spec, stage in zip(self._layer_specs, stage_of, strict=True)
            if isinstance(spec, TiedLayerSpec) and rank_of_stage[stage] == self.stage_id
        }
        for index, layer in enumerate(self._layer_specs):
            is_here = rank_of_stage[stage_of[index]] == self.stage_id
            if isinstance(layer, TiedLayerSpec):
                self._add_tied(index, layer, firsts, is_here=is_here, is_held=layer.key in held)
                continue
            made = layer
            if isinstance(layer, LayerSpec):
                made = self._make(index, layer, is_needed=is_here)
            if is_here:
                module = made if isinstance(made, torch.nn.Module) else None
                self._hold(index, made, module)
                if module is not None:
                    self.add_module(str(index), module)

    def _make(self, index: int, spec: LayerSpec, *, is_needed: bool) -> Any:
        """The layer.  Without seeds of its own it draws from the generator on every rank."""
        if self._seeds is None:
            return spec.build()
        if not is_needed:
            return None
        self._seeds.before_build(index)
        return spec.build()

    def _hold(self, index: int, call: Callable[[Any], Any], module: torch.nn.Module | None) -> None:
        name = f"layer {index} ({_class_of(self._layer_specs[index])})"
        self._here[index] = Layer(index, name, call, module)
        if module is not None:
            self._spread(module)

    def _spread(self, module: torch.nn.Module) -> None:
        if self._spreading is not None:
            self._spreading.spread(module)

    def _add_tied(
        self,
        index: int,
        spec: TiedLayerSpec,
        firsts: dict[str, torch.nn.Module],
        *,
        is_here: bool,
        is_held: bool,
    ) -> None:
        """One of a key's layers.  The first one is made where any of them is."""
        if spec.key not in firsts:
            made = self._make(index, spec, is_needed=is_held)
            if made is None:
                return
            firsts[spec.key] = made if is_held else made.to("meta")
            if is_held:
                self._spread(made)
        is_of_first_class = self._ties.is_of_first_class(spec)
        if is_of_first_class:
            module = firsts[spec.key]
        else:
            module = self._make(index, spec, is_needed=is_here)
            if module is not None:
                self._share(spec, firsts[spec.key], module)
        if not is_here:
            return
        if is_of_first_class:
            self.tied_modules[spec.key] = module
        else:
            self.add_module(str(index), module)
        call = module if spec.forward_fn is None else functools.partial(spec.forward_fn, module)
        self._hold(index, call, module)

    @staticmethod
    def _share(spec: TiedLayerSpec, first: torch.nn.Module, module: torch.nn.Module) -> None:
        """Gives a module of another class the first one's parameters, which its spec names."""
        of_first = dict(first.named_parameters())
        for name, own in TiedLayers.named(spec, module).items():
            if name not in of_first or of_first[name].shape != own.shape:
                has = tuple(of_first[name].shape) if name in of_first else "none"
                raise ConfigError(
                    f'{spec!r} is tied as "{spec.key}" by "{name}" of shape {tuple(own.shape)}; '
                    f"the first layer of this key has {has}"
                )
            path, _, last = name.rpartition(".")
            setattr(module.get_submodule(path), last, of_first[name])

    def _partition(self, stages: int) -> list[int]:
        method, layers = self._partition_method, len(self._layer_specs)
        if not isinstance(method, str):
            bounds = [_arguments.integer("partition_method", each) for each in method]
            return _planning.partition_by_bounds(layers, stages, bounds)
        kind, _, pattern = method.partition(":")
        if method.lower() == "uniform":
            return _planning.partition_uniformly(layers, stages)
        if method.lower() == "parameters":
            return _planning.partition_by_costs(self._count_parameters(), stages)
        if kind.lower() == "type":
            return _planning.partition_by_costs(self._matches(pattern), stages)
        raise ConfigError(
            f'partition_method is {method!r}, must be "uniform", "parameters", "type:REGEX", or a '
            f"list of bounds"
        )

    def _matches(self, pattern: str) -> list[float]:
        try:
            regex = re.compile(pattern, re.IGNORECASE)
        except re.error as error:
            raise ConfigError(f"partition_method type:{pattern} is no pattern: {error}") from error
        names = [_class_of(layer) for layer in self._layer_specs]
        found = [float(regex.search(name) is not None) for name in names]
        if not any(found):
            raise ConfigError(
                f"partition_method type:{pattern} matches no layer: there are "
                f"{', '.join(dict.fromkeys(names))}"
            )
        return found

    def _count_parameters(self) -> list[float]:
        return [float(_trainable(_shape_of(layer))) for layer in self._layer_specs]


def _topology(num_stages: int | None, topology: ProcessTopology | None) -> ProcessTopology:
    world = dist.get_world_size()
    if topology is None:
        if num_stages is None:
            raise ConfigError("a PipelineModule needs num_stages or topology")
        stages = _arguments.integer("num_stages", num_stages)
        if stages < 1 or world % stages:
            raise ConfigError(f"num_stages is {stages}, must divide the number of ranks, {world}")
        return PipeDataParallelTopology(num_pp=stages, num_dp=world // stages)
    if topology.world_size() != world:
        raise ConfigError(
            f"the topology {topology} is for {topology.world_size()} ranks of {world}"
        )
    if num_stages is not None and num_stages != topology.get_dim("pipe"):
        raise ConfigError(f"num_stages is {num_stages}, and the topology is {topology}")
    used = [axis for axis in topology.get_axis_names() if topology.get_dim(axis) > 1]
    if used not in ([], ["pipe"], ["data"], ["pipe", "data"]):
        raise ConfigError(
            f"the topology is {topology}: penstock runs pipe x data, in this order, so other axes "
            f"must have one place"
        )
    return PipeDataParallelTopology(
        num_pp=max(1, topology.get_dim("pipe")), num_dp=max(1, topology.get_dim("data"))
    )


def _class_of(layer: Any) -> str:
    if isinstance(layer, LayerSpec):
        return layer.typename.__name__
    if isinstance(layer, torch.nn.Module):
        return type(layer).__name__
    return str(getattr(layer, "__name__", type(layer).__name__))


def _shape_of(layer: Any) -> Any:
    """The layer with the sizes of its parameters, if not their values."""
    if not isinstance(layer, LayerSpec):
        return layer
    with torch.random.fork_rng(devices=[]):
        try:
            with torch.device("meta"):
                return layer.build()
        except Exception:  # It looks at values; if it is wrong, it says so again.
            return layer.build()


def _trainable(layer: Any) -> int:
    if not isinstance(layer, torch.nn.Module):
        return 0
    return sum(each.numel() for each in layer.parameters() if each.requires_grad)


def _refuse_spread(what: str, module: Any) -> None:
    """Raises ConfigError for a module whose parameters are away: it is other ranks', too."""
    if not isinstance(module, torch.nn.Module):
        return
    for each in module.parameters():
        if isinstance(each, ZeroParameter) and place_of(each).number is not None:
            raise ConfigError(
                f"{what} is a {type(module).__name__} that zero.Init has spread over all ranks: a "
                f"LayerSpec is made, and spread, where its stage is"
            )


published_as("penstock.pipe.module", globals())
