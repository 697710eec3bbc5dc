"""`prfaas up` with stand-ins instead of the real programs: updriver.py TOPOLOGY DIRECTORY [flags of the stand-ins]"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from prfaas.cli.programs import Program, localised
from prfaas.cli.supervise import Pace
from prfaas.cli.up import prepare, stay_up
from prfaas.config.reader import read_topology

STANDIN = str(Path(__file__).with_name("standin.py"))


def main() -> None:
    file, directory, *flags = sys.argv[1:]

    def command(program: Program) -> list[str]:
        pids = f"{directory}/{program.name}.pids"
        return [sys.executable, STANDIN, str(program.health.port), "--pid-file", pids, *flags]

    topology = localised(read_topology(Path(file)), Path(directory))
    run = prepare(topology, dict(os.environ), Path(directory) / "logs")
    sys.exit(asyncio.run(stay_up(run, command, Pace(grace_s=1.0, pause_s=0.05))))


if __name__ == "__main__":
    main()
