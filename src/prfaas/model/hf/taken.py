"""What a layout takes for granted: numbers' types, and the engine's convention.

It knows which settings say a type; it does not know shapes.
"""

from __future__ import annotations

from dataclasses import dataclass

from prfaas.core.errors import ConfigError
from prfaas.model.hf.config import Config
from prfaas.model.hf.convention import Convention

KV_DTYPES = {"bf16": "bfloat16", "fp8": "float8_e4m3fn"}
_FLOATS = ("bfloat16", "float16", "float32")


@dataclass(frozen=True, slots=True)
class Taken:
    """Dtypes: `rows` of attention and MLA, `model` of convolutions, `recurrent` of recurrent states."""

    rows: str
    model: str
    recurrent: str
    convention: Convention

    def columns(self, kernel: int) -> int:
        """How many inputs the state of a convolution with `kernel` taps keeps."""
        return kernel - 1 + self.convention.spare_columns

    @property
    def lightning(self) -> str:
        """The dtype of Lightning attention's state."""
        return self.model if self.convention.lightning_as_model else self.recurrent


def taken_of(config: Config, kv_dtype: str | None, convention: Convention) -> Taken:
    """What `config` says of types; where it is silent: a model in bfloat16 with float32 states. Raises ConfigError."""
    if kv_dtype is not None and kv_dtype not in KV_DTYPES:
        raise ConfigError(f"kv dtype: got {kv_dtype!r}; expected one of {', '.join(KV_DTYPES)}")
    model = _float(config, "dtype", "torch_dtype") or "bfloat16"
    recurrent = _float(config, "mamba_ssm_dtype", "mamba_ssm_cache_dtype") or "float32"
    return Taken(KV_DTYPES[kv_dtype] if kv_dtype else model, model, recurrent, convention)


def _float(config: Config, *names: str) -> str:
    for name in names:
        said = config.text(name)
        if said and said != "auto":
            if said not in _FLOATS:
                raise config.wrong(name, f"one of {', '.join(_FLOATS)}")
            return said
    return ""
