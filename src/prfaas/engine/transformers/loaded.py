"""A model in memory: run some tokens against a cache, and say so after each layer.

It knows how transformers loads and calls a causal language model; it does not know sequences, sinks or threads.
Everything here is called from one thread.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING
from transformers.utils import logging as hf_logging

from prfaas.core.cache.layout import KVLayout
from prfaas.core.errors import ConfigError, InvariantError
from prfaas.core.transfer.extent import Coverage
from prfaas.engine.reuse import Reuse, spec_of
from prfaas.engine.transformers import kvmap, layout, pieces
from prfaas.engine.transformers.checkpoint import Checkpoint, free_host_bytes, require_memory
from prfaas.engine.transformers.layout import MOVABLE_WORDS
from prfaas.transport.base import LandedKV

DTYPES = ("auto", "float32", "bfloat16", "float16")
_PROBE = 5
"""Tokens of the trial hand-over at load: more than a convolution's kernel."""


def quiet() -> None:
    """No progress bars, no advice about optional kernels: this process has logs of its own."""
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()


class LoadedModel:
    """One causal language model, ready, on `device`; `layout` is the layout of its caches, `spec` how prefixes of it
    are kept."""

    def __init__(self, checkpoint: Checkpoint, model: Any, device: str, block_tokens: int = 64) -> None:
        """`model` is what `read_model` gave, on `device`. Raises ConfigError when its cache cannot be moved."""
        self._model = model.eval()
        self.device = device
        self._family = checkpoint.family
        self._after_layer: Callable[[int], None] | None = None
        text_config = model.config.get_text_config(decoder=True)
        self.vocab_size = int(text_config.vocab_size)
        self.max_length = int(getattr(text_config, "max_position_embeddings", 0) or (1 << 20))
        self._hook_layers()
        self.layout = KVLayout(checkpoint.revision(), self._trial())
        self.spec = spec_of(self.layout, block_tokens)

    def new_cache(self) -> Any:
        """An empty cache for one sequence."""
        return transformers.DynamicCache(config=self._model.config)

    def cache_from(self, landed: LandedKV, reuse: Reuse) -> Any:
        """A cache that holds `landed` and what of `reuse` it builds on, copied."""
        cache = self.new_cache()
        kept = pieces.values(self.layout, self.spec, reuse) if self.spec is not None and landed.held else {}
        kvmap.fill(cache, self.layout, landed, self.device, kept)
        return cache

    def cache_of(self, reuse: Reuse) -> Any:
        """A cache that holds what `reuse` resumes from, copied."""
        if self.spec is None:
            raise InvariantError("a prefix of a model of which none are kept")
        cache = self.new_cache()
        pieces.resume(cache, self.layout, self.spec, reuse)
        return cache

    def forward(self, tokens: Sequence[int], cache: Any, after_layer: Callable[[int], None]) -> Any:
        """Run `tokens` behind what `cache` holds, which grows. Scores of the next token: float32, (vocabulary,), CPU.

        `after_layer(i)` is called when layer i is done, its cache written. What it raises ends the run, and the cache
        is of no use after that.
        """
        return self._run(tokens, cache, after_layer, keep=1)[-1].to(device="cpu", dtype=torch.float32)

    def forward_all(self, tokens: Sequence[int], cache: Any, after_layer: Callable[[int], None]) -> Any:
        """As `forward`, but the scores behind each token, (tokens, vocabulary), as and where the model left them."""
        return self._run(tokens, cache, after_layer, keep=0)

    def _run(self, tokens: Sequence[int], cache: Any, after_layer: Callable[[int], None], *, keep: int) -> Any:
        ids = torch.tensor([list(tokens)], dtype=torch.long, device=self.device)
        self._after_layer = after_layer
        try:
            out = self._model(input_ids=ids, cache=cache, use_cache=True, logits_to_keep=keep)
        finally:
            self._after_layer = None
        return out.logits[0]

    def _hook_layers(self) -> None:
        for index, layer in enumerate(self._model.get_decoder().layers):
            layer.register_forward_hook(self._hook(index))

    def _hook(self, index: int) -> Callable[..., None]:
        def hook(_module: Any, _args: Any, _output: Any) -> None:
            if self._after_layer is not None:
                self._after_layer(index)

        return hook

    def _trial(self) -> tuple[Any, ...]:
        """The parts of the cache, proven by a small hand-over: the copy must give the same scores, bit by bit."""
        cache = self.new_cache()
        tokens = [token % self.vocab_size for token in range(1, _PROBE + 2)]
        seen: list[int] = []
        self.forward(tokens[:_PROBE], cache, seen.append)
        parts = layout.parts_of(cache)
        trial = KVLayout("trial", parts)
        if seen != list(range(len(cache.layers))):
            raise ConfigError(f"{self._family}: its layers do not run once each, in order")
        again, landed, coverage = self.new_cache(), LandedKV(_PROBE), Coverage(trial, _PROBE)

        def gather(index: int) -> None:
            for part in trial.of_layer(index):
                for extent, data in kvmap.cut(again.layers[index], part, 0, _PROBE, _PROBE):
                    coverage.add(extent)
                    landed.parts[extent.layer, extent.part] = bytearray(data)

        self.forward(tokens[:_PROBE], again, gather)
        kvmap.settle(cache, trial)
        copy = self.new_cache()
        kvmap.fill(copy, trial, landed, self.device)
        here, there = (self.forward(tokens[_PROBE:], which, lambda _: None) for which in (cache, copy))
        if not coverage.complete or not torch.equal(here, there):
            raise ConfigError(f"{self._family}: a copy of its cache does not continue as the original does")
        return parts


def load(checkpoint: Checkpoint, dtype: str, device: str, block_tokens: int = 64) -> LoadedModel:
    """Load the weights.

    Raises ConfigError: too large, unknown family, tensors missing or of other shapes, a cache that cannot be moved.
    """
    quiet()
    config = read_config(checkpoint)
    chosen = getattr(config, "dtype", None) or torch.float32 if dtype == "auto" else layout.dtype_named(dtype)
    _require_room(checkpoint, chosen, device)
    model = read_model(checkpoint, config, chosen)
    try:
        with torch.inference_mode():
            return LoadedModel(checkpoint, model.to(device), device, block_tokens)
    except (ValueError, TypeError, AttributeError, LookupError, RuntimeError) as error:
        raise ConfigError(f"{checkpoint.family}: trial run failed: {error!r}; these work: {MOVABLE_WORDS}") from error


def read_config(checkpoint: Checkpoint) -> Any:
    """The configuration as transformers has it. Raises ConfigError: a family that is not known, or of another kind."""
    family = checkpoint.config.get("model_type")
    if not isinstance(family, str) or family not in CONFIG_MAPPING:
        said = f"model_type is {family!r}, which transformers {transformers.__version__} does not know"
        raise ConfigError(f"{checkpoint.directory / 'config.json'}: {said}; these work: {MOVABLE_WORDS}")
    try:
        config = transformers.AutoConfig.from_pretrained(
            checkpoint.directory, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # a validator of transformers' may raise anything
        raise ConfigError(f"{checkpoint.directory / 'config.json'}: not one of {family}: {_line(error)}") from error
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ConfigError(f"{family}: not a causal language model; these work: {MOVABLE_WORDS}")
    return config


def read_model(checkpoint: Checkpoint, config: Any, dtype: Any, device_map: str | None = None) -> Any:
    """The model with its weights; with `device_map` "meta" without them, from the files' headers alone.

    Raises ConfigError: tensors missing or of other shapes, a model or a cache that does not work here.
    """
    family, directory = checkpoint.family, checkpoint.directory
    try:
        model, report = transformers.AutoModelForCausalLM.from_pretrained(
            directory,
            config=config,
            dtype=dtype,
            device_map=device_map,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # they are in the report then, by name, and refused below
            output_loading_info=True,
        )
    except Exception as error:  # of values that no model has, its own code may make anything
        raise ConfigError(f"{directory}: cannot load {family}: {_line(error)}") from error
    for what in ("missing_keys", "mismatched_keys", "error_msgs"):
        if wrong := sorted(map(_key, report.get(what) or ())):
            some = ", ".join(wrong[:4])
            raise ConfigError(f"{directory}: {what.replace('_', ' ')}: {some} ({len(wrong)} in all)")
    if "logits_to_keep" not in inspect.signature(model.forward).parameters:
        raise ConfigError(f"{family}: not a decoder-only causal language model; these work: {MOVABLE_WORDS}")
    cache = transformers.DynamicCache(config=model.config)
    layout.require_movable(cache, family)
    layers = getattr(model.get_decoder(), "layers", None)
    if layers is None or len(layers) != len(cache.layers):
        said = "its decoder layers do not stand beside its cache layers one to one"
        raise ConfigError(f"{family}: {said}; these work: {MOVABLE_WORDS}")
    return model


def _key(found: Any) -> str:
    """A tensor's name; one of another shape comes with both shapes."""
    match found:
        case (str(name), here, wanted):
            return f"{name} {list(here)} instead of {list(wanted)}"
    return str(found)


def _line(error: Exception) -> str:
    """What `error` says, in one line that is not endless."""
    return " ".join(str(error).split())[:400] or type(error).__name__


def _require_room(checkpoint: Checkpoint, dtype: Any, device: str) -> None:
    needed_bytes = checkpoint.weights * dtype.itemsize
    if device == "cpu":
        require_memory(checkpoint, needed_bytes, free_host_bytes(), "host")
    elif device.startswith("cuda"):
        if not torch.cuda.is_available():
            raise ConfigError(f"device {device!r}: no CUDA device here")
        require_memory(checkpoint, needed_bytes, int(torch.cuda.mem_get_info(device)[0]), device)
    else:
        raise ConfigError(f"device {device!r}: expected cpu or cuda[:N]")
