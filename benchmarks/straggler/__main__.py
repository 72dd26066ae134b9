"""`python -m benchmarks.straggler run | price | page | cases`: tools that look for stragglers, beside known delays."""

from __future__ import annotations

import argparse
import fnmatch
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

from benchmarks.straggler.cases import CASES, Case, computing
from benchmarks.straggler.page import page
from benchmarks.straggler.run import TOOLS, Server, Tool, cpu_of_children_s, needs_launcher, read_result, run, train
from benchmarks.straggler.score import truth_of

PRICED = "equal-ddp-2"
PRICED_STEPS = 205


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.straggler", description=(__doc__ or "").strip())
    actions = parser.add_subparsers(dest="action", required=True)
    for name, text in (("run", "train under tools and keep their answers"), ("price", "what a tool costs, in pairs")):
        action = actions.add_parser(name, help=text)
        action.add_argument("--tool", action="append", required=True, metavar="NAME[=PYTHON]", type=tool_of,
                            help=f"{', '.join(TOOLS)}; PYTHON is the interpreter that has it")  # fmt: skip
        action.add_argument("--out", type=Path, default=Path("straggler-results"))
        if name == "run":
            action.add_argument("--cases", default="*", metavar="PATTERN", help="names, as ddp-*")
            action.add_argument("--work", choices=("sleep", "compute"), default="sleep", help="what ranks do (sleep)")
            action.add_argument("--missing", action="store_true", help="only cases without a result, or that failed")
        else:
            action.add_argument("--pairs", type=int, default=9)
    written = actions.add_parser("page", help="the results as Markdown, on standard output")
    written.add_argument("--out", type=Path, default=Path("straggler-results"))
    actions.add_parser("cases", help="all trainings, a line each")
    args = parser.parse_args()
    if args.action == "cases":
        for case in CASES:
            print(json.dumps(case.plan()))
    elif args.action == "page":
        print(page(args.out), end="")
    elif args.action == "price":
        for tool in args.tool:
            _price(tool, args.out, args.pairs)
    else:
        cases = [case for case in CASES if fnmatch.fnmatch(case.name, args.cases)]
        if not cases:
            parser.error(f"no case is called {args.cases}: python -m benchmarks.straggler cases")
        cases = [*map(computing, cases)] if args.work == "compute" else cases
        for tool in args.tool:
            _run(cases, tool, args.out, missing=args.missing)
    return 0


def tool_of(text: str) -> Tool:
    """`NAME[=PYTHON]`, its interpreter by its whole path. Raises ArgumentTypeError."""
    name, _, python = text.partition("=")
    if name not in TOOLS:
        raise argparse.ArgumentTypeError(f"no adapter is called {name}; there are {', '.join(TOOLS)}")
    path = shutil.which(python or sys.executable)
    if path is None:
        raise argparse.ArgumentTypeError(f"{python} is no interpreter")
    return Tool(name=name, python=str(Path(path).absolute()))  # trainings run in folders of their own


def _run(cases: list[Case], tool: Tool, out: Path, *, missing: bool) -> None:
    """All of the cases, or those without a training that came to its end."""
    server = None if needs_launcher(tool) else Server(tool)
    for case in cases:
        path = out / tool.name / f"{case.name}.json"
        if missing and path.exists() and not read_result(path).failure:
            continue
        result = run(case, tool, (out / "work" / tool.name).resolve(), server)
        result.write(path)
        answers = [(each["who"], each["phase"], each["ms_per_step"]) for each in result.answer["findings"]]
        print(f"{tool.name} {case.name}: {result.answer['verdict']} {answers} {result.failure[-200:]}", flush=True)
    if server is not None:
        server.close()


def _price(tool: Tool, out: Path, pairs: int) -> None:
    """Pairs of one training: without the tool and with it, in the same interpreter, the first by turns."""
    case = replace(next(each for each in CASES if each.name == PRICED), steps=PRICED_STEPS)
    folder, taken = (out / "work" / "price").resolve(), []
    for pair in range(pairs):
        both = {}
        for each in [Tool(name="", python=tool.python), tool][:: 1 - 2 * (pair % 2)]:
            before = cpu_of_children_s()
            if failure := train(case, each, folder):
                raise SystemExit(f"{each.name or 'no tool'}: {failure}")
            truth = truth_of(folder, case.warmup)
            both[each.name] = [cpu_of_children_s() - before, truth.step_ms, truth.cpu_ms]
        taken.append([both[""], both[tool.name]])
        print(f"{tool.name}: [CPU s of the whole, step ms, CPU ms a step] without, with: {taken[-1]}", flush=True)
    (out / tool.name).mkdir(parents=True, exist_ok=True)
    (out / tool.name / "price.jsonl").write_text("".join(json.dumps(each) + "\n" for each in taken))


if __name__ == "__main__":
    sys.exit(main())
