"""What `prfaas up` says when all is ready: where to ask, how, and where the logs are.

It knows the words; it does not know processes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from prfaas.config.topology import Topology
from prfaas.config.units import Endpoint


def welcome(
    topology: Topology, seconds: float, logs: Mapping[str, Path], environ: Mapping[str, str], file: Path
) -> str:
    """The whole block. `logs` by program; `file` is the topology with everything filled in."""
    gateways = {name: cluster.listen for name, cluster in topology.of_kind("pd").items() if cluster.listen}
    urls = [f"http://{_dialled(listen)}/v1" for listen in gateways.values()]
    named = [f"{url} ({name})" for url, name in zip(urls, gateways, strict=True)]
    security, name = topology.security, topology.public_name
    keyed = security.api_keys_file is not None or bool(environ.get(security.api_keys_env))
    chats = has_chat_template(Path(topology.model))
    where = next(iter(logs.values())).parent if logs else Path()
    lines = [
        "",
        f"Ready after {seconds:.1f} s: {name} at {', '.join(named if len(named) > 1 else urls)}",
        "",
        *_curl(urls[0], name, keyed=keyed, chats=chats),
        "",
        *_python(urls[0], name, keyed=keyed, chats=chats),
        "",
        f"    Logs, one file a program: {where}",
        f"        {' '.join(path.name for path in logs.values())}",
        f"    The topology as it runs: {file}",
        "",
        "Ctrl-C ends all of it.",
    ]
    return "\n".join(lines)


def has_chat_template(model: Path) -> bool:
    """Whether the checkpoint in `model` can chat; else it only completes text."""
    if (model / "chat_template.jinja").is_file():
        return True
    try:
        config = json.loads((model / "tokenizer_config.json").read_text("utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and bool(config.get("chat_template"))


def _curl(url: str, name: str, *, keyed: bool, chats: bool) -> list[str]:
    key = ' -H "authorization: Bearer $KEY"' if keyed else ""
    body: dict[str, object] = {"model": name, "max_tokens": 64}
    if chats:
        body["messages"] = [{"role": "user", "content": "What is the capital of France?"}]
    else:
        body |= {"prompt": "The capital of France is"}
    path = "chat/completions" if chats else "completions"
    return [
        f"    curl {url}/{path} -H 'content-type: application/json'{key} \\",
        f"        -d '{json.dumps(body)}'",
    ]


def _python(url: str, name: str, *, keyed: bool, chats: bool) -> list[str]:
    key = 'os.environ["KEY"]' if keyed else '"unused"'
    ask = 'messages=[{"role": "user", "content": "Hello!"}]' if chats else 'prompt="The capital of France is"'
    method = "chat.completions" if chats else "completions"
    return [
        *(["    import os"] if keyed else []),
        "    from openai import OpenAI",
        f'    client = OpenAI(base_url="{url}", api_key={key})',
        f'    answer = client.{method}.create(model="{name}", max_tokens=64, {ask})',
        f"    print(answer.choices[0].{'message.content' if chats else 'text'})",
    ]


def _dialled(listen: Endpoint) -> str:
    return str.__str__(Endpoint.at("127.0.0.1", listen.port) if listen.wildcard else listen)
