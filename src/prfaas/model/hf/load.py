"""The KV layout of a model, by its config.json or by its name: no weights, no torch.

It knows where configs are, and those that come with prfaas; what they mean is the families' business.
"""

from __future__ import annotations

import difflib
from pathlib import Path

from prfaas.core.cache.layout import KVLayout
from prfaas.core.errors import ConfigError
from prfaas.model.hf.config import read_config
from prfaas.model.hf.convention import SERVED, Convention
from prfaas.model.hf.families import family_of
from prfaas.model.hf.taken import taken_of

CONFIGS = Path(__file__).parents[1] / "configs"


def load_layout(source: str, kv_dtype: str | None = None, convention: Convention = SERVED) -> KVLayout:
    """The layout of `source`: a config.json, a directory that has one, or a name of `known_models`.

    `kv_dtype`: bf16 or fp8 rows of attention and MLA, by default the model's own type; states keep theirs.
    `convention`: how the engine keeps it. Raises ConfigError: the file, the missing setting, or the known names.
    """
    file = config_file(source)
    config = read_config(file)
    family = family_of(config)
    taken = taken_of(config, kv_dtype, convention)
    name = file.stem if file.parent == CONFIGS else source
    return KVLayout(f"{name}@{taken.rows}", tuple(family(config, taken)))


def known_models() -> tuple[str, ...]:
    """The names that `load_layout` takes, sorted."""
    return tuple(sorted((path.stem for path in CONFIGS.glob("*.json")), key=str.lower))


def config_file(source: str) -> Path:
    """The file that `source` means. A name may have its organisation before it, and any case. Raises ConfigError."""
    path = Path(source)
    if path.is_dir():
        file = path / "config.json"
        if not file.is_file():
            raise ConfigError(f"{source}: no config.json there; expected a directory with a Hugging Face config.json")
        return file
    if path.exists():
        return path
    names = {name.lower(): name for name in known_models()}
    asked = source.rpartition("/")[2].lower()
    if asked in names and source.count("/") <= 1:
        return CONFIGS / f"{names[asked]}.json"
    close = difflib.get_close_matches(asked, list(names), n=1)
    meant = f" (did you mean {names[close[0]]}?)" if close else ""
    raise ConfigError(
        f"{source}: no such file or model{meant}; expected a config.json, a directory with one, or one of"
        f" {', '.join(known_models())}"
    )
