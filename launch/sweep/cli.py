"""Measures a training workload over node counts: plans the runs, writes one job script per node count, submits them.

    python -m hpc.sweep --nodes 1,2,4
    python -m hpc.sweep --nodes 1,2,4 --ranks-per-node 8 --batch-size 128,256 --precision fp32,amp-fp16 --site mysite
    python -m hpc.sweep --cases 1n1g,1n8g,4n8g --env NCCL_ALGO=Ring,Tree --dry-run
    python -m hpc.sweep --nodes 1,2 --workload examples/my_training.py:MyTraining
    python -m hpc.sweep --status
    python -m hpc.sweep --cancel

Lists multiply: every combination is a point, measured --repeats times. Where Slurm is not installed, the same scripts
run on this machine. The same command again runs only what is not settled. Then: python -m parse.summarize traces/

Exit status 0: every run is ok (--detach: every job is submitted; --cancel: every job has ended; --dry-run: planned);
1: a run is not ok, the sweep cannot start, or its output cannot be written; 2: usage; 130: Ctrl-C, jobs of Slurm go on.
docs/sweeps.md has more.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpc.model.options import MAX_WHOLE, Option, OptionError
from hpc.model.spec import COLLECTIVES, MIN_WARMUP_STEPS, PRECISIONS, SCALINGS, STAMPINGS, SpecError
from hpc.system.command_line import importing
from hpc.system.command_parser import CommandParser
from hpc.system.sanitize import deny_world_writing, plain
from hpc.system.version import with_version
from launch.sweep.config import ACTIONS, CONFIG_ACTIONS, LAUNCH_KEYS, assignments, read_config
from launch.sweep.spec import LONGEST_BLOCK, SweepSpec

if TYPE_CHECKING:
    from launch.sweep import submit


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line. 0: every run is ok (or was submitted); 1: a run or a submission failed; 2: usage."""
    arguments = vars(_parser().parse_args(argv))
    deny_world_writing()
    with importing():
        from launch.sweep import status, submit  # what the command line is for; --help needs none of it

    try:
        asked, settings = _merge(arguments)
        if arguments["status"] or arguments["cancel"]:
            of = SweepSpec.from_mapping(asked) if asked else None
            return (status.cancel if arguments["cancel"] else status.show)(of, settings)
        return submit.sweep(SweepSpec.from_mapping(asked), settings, _how(arguments, settings))
    except (SpecError, OptionError) as error:
        print(f"hpc.sweep: {plain(str(error))}", file=sys.stderr)
        return 2
    except submit.FAILURES as error:
        print(f"hpc.sweep: {plain(str(error))}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="python -m hpc.sweep", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument_group(
        "what is measured (lists multiply; without GPUs the defaults are smaller, and said)"
    ).add_argument
    add("--nodes", metavar="N,…", help="node counts, each with every --ranks-per-node")
    add("--ranks-per-node", metavar="N,…", help="MPI ranks per node, one GPU each (default: the node's GPUs, else 1)")
    add("--cases", metavar="2n8g,…", help="nodes and ranks per node in one word, beside or instead of --nodes")
    add("--cpus-per-rank", metavar="N,…", help="threads of each rank (default: a node's cores shared by its ranks)")
    add("--gpus-per-node", metavar="N", help="GPUs that a node has; 0 runs on CPUs (default: the site's, else sinfo's)")
    add("--backend", metavar="NAME,…", help="framework and strategy (default torch-ddp); --list shows all")
    add("--workload", metavar="NAME,…", help="what is trained (default resnet50), or FILE.py:FACTORY of your own")
    add("--batch-size", metavar="N,…", help="samples per device, or with --scaling strong in all (default 128)")
    add("--precision", metavar="P,…", help=f"{', '.join(PRECISIONS)} (default fp32)")
    add("--scaling", metavar="S,…", help=f"{', '.join(SCALINGS)} (default weak)")
    add(
        "--stamps",
        metavar="S,…",
        help=f"{', '.join(STAMPINGS)} (default fine: six a step; coarse: begin, batch, end, and the framework's fused "
        "way in between)",
    )
    add("--telemetry", metavar="T,…", help="on, off (default on: a helper on each node reads clocks, power and load)")
    add("--xla", action="append_const", dest="option", const="xla=on", help="the same as --option xla=on")
    add("--option", action="append", metavar="NAME=V,…", help="an option of backend or workload; --list shows all")
    add(
        "--env",
        action="append",
        metavar="NAME=V,…",
        help="environment variable of the runs; \\, is a comma in a value",
    )
    add = parser.add_argument_group("how it is measured").add_argument
    add("--steps", metavar="N", help="steps of a run, warm-up included (default 120)")
    add("--warmup", metavar="N", help="first steps that no number counts (default 20, at least 5)")
    add("--block-steps", metavar="N",
        help=f"measured steps of a block (default {LONGEST_BLOCK}; 0: one block): a run with more has several, each "
        f"entered through {MIN_WARMUP_STEPS} unmeasured steps, with the clocks synchronised in between")  # fmt: skip
    add("--repeats", metavar="N", help="runs of every point (default 5)")
    add("--seed", metavar="N", help="seed of weights and synthetic data (default 0)")
    add("--placement", metavar="P",
        help="separate (default): a job, and so an allocation, for each node count; nested: one for all, the smaller "
        "cases on some of the larger ones' nodes, in blocks shuffled by seed")  # fmt: skip
    add("--no-baseline", dest="baseline", action="store_const", const=False,
        help="do not add 1n1g runs: there will be no speedup")  # fmt: skip
    add("--collectives", action="store_const", const=True,
        help="add to every set of ranks that trains one run of its collectives alone: what communication could cost at "
        "best (sizes by --option; --list shows them)")  # fmt: skip
    add("--twin", action="store_const", const=True,
        help="add to every point on several ranks the same without reduction of gradients, for the ledger")  # fmt: skip
    add = parser.add_argument_group("where it runs").add_argument
    add(
        "--cluster",
        choices=("auto", "slurm", "local"),
        help="auto (the default): Slurm where a site is named or Slurm is installed, else this machine",
    )
    add("--site", metavar="NAME|FILE", help="facts of the cluster (TOML); default: the one that knows this host's name")
    for name in ("partition", "account", "qos", "constraint", "reservation", "nodelist", "exclude"):
        add(f"--{name}", metavar="TEXT", help="as in sbatch")
    add("--time", metavar="MIN", help="time limit of each job in minutes; a plan that would not fit is split")
    add(
        "--minutes-per-run",
        metavar="MIN",
        help="minutes that a job's time limit allows each run (default 10)",
    )
    add("--out", metavar="DIR", help="folder that gets jobs/ and traces/ (default: this one)")
    add("--config", metavar="FILE", help="TOML with the names of these options; the command line wins")
    add = parser.add_argument_group("what watches over a run").add_argument
    add("--copy-s", metavar="S", help="seconds between copies of what ranks have recorded (default 10; 0: none)")
    add("--start-limit-s", metavar="S", help="a run that makes no step for so long after its start hangs (default 600)")
    add("--hang-steps", metavar="N", help="later: one that makes none for N times its median step (default 10)")
    add("--hang-extra-s", metavar="S", help="and so many seconds (default 60)")
    add = parser.add_argument_group("what is done").add_argument
    add("--dry-run", action="store_true", help="write and show everything, submit nothing")
    add("--detach", action="store_true", help="submit and leave; without it the sweep follows its runs")
    add("--max-jobs", metavar="N", help="at most so many jobs of this sweep in the queue; others as those end")
    add("--retry", metavar="OUTCOME,…", help="run again what ended so: invalid, oom, rank_fail")
    add(
        "--rerun-if-changed",
        action="store_true",
        help="run again what was measured with other packages, another Python, MPI or commit than are here now",
    )
    add("--force", action="store_true", help="run settled runs again as well")
    add(
        "--status",
        action="store_true",
        help="show how the runs stand; ends with 1 unless all are ok. With --out alone: all sweeps in there",
    )
    add("--cancel", action="store_true", help="end the jobs of this sweep, no others. With --out alone: all in there")
    add("--list", action=_List, nargs=0, help="show backends, workloads, their options and the sites, and exit")
    return with_version(parser)


class _List(argparse.Action):
    """Shows what can be named, from the tables; imports no framework."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from hpc.backends import BACKENDS, missing_modules
        from hpc.workloads import WORKLOADS
        from launch.jobs.site import known_sites

        print("backends:")
        for name, backend in BACKENDS.items():
            missing = missing_modules(name)
            print(f"  {name} ({backend.framework}): {'; '.join(missing) or 'installed here'}")
            _print_options(backend.options)
        print("workloads:")
        for name, workload in WORKLOADS.items():
            how = "by --collectives" if name == COLLECTIVES else f"for {', '.join(workload.factories)}"
            print(f"  {name} ({how})")
            _print_options(workload.options)
        print("sites:")
        for name, path in known_sites().items():
            print(f"  {name}  {path}")
        sys.stdout.flush()
        parser.exit(0)


def _print_options(options: Mapping[str, Option]) -> None:
    for name, option in options.items():
        default = ("on" if option.default else "off") if isinstance(option.default, bool) else option.default
        print(f"      {name}: {option.help} (default {default})")


def _how(arguments: Mapping[str, Any], settings: Mapping[str, str]) -> submit.SweepOptions:
    """What is done with the sweep. Raises SpecError where that cannot be."""
    from launch.sweep.rerun import RerunRequest, outcomes_to_retry
    from launch.sweep.submit import SweepOptions

    most = settings.get("max_jobs")
    if most is not None and (not (most.isascii() and most.isdigit()) or not 1 <= int(most[:12]) <= MAX_WHOLE):
        raise SpecError(f"--max-jobs {most!r} is no number of jobs, from 1 to {MAX_WHOLE}")
    on = {name: bool(arguments[name] or settings.get(name)) for name in CONFIG_ACTIONS}
    retry = arguments["retry"] if arguments["retry"] is not None else settings.get("retry")
    return SweepOptions(
        dry_run=on["dry_run"],
        detach=on["detach"],
        max_jobs=None if most is None else int(most),
        rerun=RerunRequest(
            retry=() if retry is None else outcomes_to_retry(retry),
            if_changed=on["rerun_if_changed"],
            force=on["force"],
        ),
    )


def _merge(arguments: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Config file and command line as one: what is measured, and where. Raises SpecError on what neither knows.

    What a config file says of CONFIG_ACTIONS is among the settings.
    """
    values = {} if arguments["config"] is None else read_config(Path(arguments["config"]))
    for name, value in arguments.items():
        if name in ("config", "list", "version", *ACTIONS) or value is None:
            continue
        if name in ("option", "env"):
            table = "options" if name == "option" else "env"
            values[table] = {**values.get(table, {}), **assignments(name, value)}
        else:
            values[name] = value
    settings = {key: values.pop(key) for key in (*LAUNCH_KEYS, *CONFIG_ACTIONS) if key in values}
    return values, {key: _setting(key, value) for key, value in settings.items()}


def _setting(name: str, value: Any) -> str:
    if name in ("nodelist", "exclude") and isinstance(value, list):
        return ",".join(_setting(name, one) for one in value)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise SpecError(f"{name} is {value!r}, not a text or a number")
    return str(value)
