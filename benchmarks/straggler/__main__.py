"""`python -m benchmarks.straggler run | price | page | cases`: tools that look for stragglers, beside known delays."""

from __future__ import annotations

import argparse
import fnmatch
import json
import sys
from pathlib import Path

from benchmarks.straggler.cases import CASES, Case
from benchmarks.straggler.page import page
from benchmarks.straggler.run import TOOLS, Tool, run

PRICED = "equal-ddp-2"


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.straggler", description=(__doc__ or "").strip())
    actions = parser.add_subparsers(dest="action", required=True)
    for name, text in (("run", "train under tools and keep their answers"), ("price", "what a tool costs, in pairs")):
        action = actions.add_parser(name, help=text)
        action.add_argument("--tool", action="append", required=True, metavar="NAME[=PYTHON]", type=_tool,
                            help=f"{', '.join(TOOLS)}; PYTHON is the interpreter that has it")  # fmt: skip
        action.add_argument("--out", type=Path, default=Path("straggler-results"))
        if name == "run":
            action.add_argument("--cases", default="*", metavar="PATTERN", help="names, as ddp-*")
            action.add_argument("--missing", action="store_true", help="only cases without a result")
        else:
            action.add_argument("--pairs", type=int, default=5)
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
        for tool in args.tool:
            for case in cases:
                if not (args.missing and (args.out / tool.name / f"{case.name}.json").exists()):
                    _run(case, tool, args.out)
    return 0


def _tool(text: str) -> Tool:
    name, _, python = text.partition("=")
    if name not in TOOLS:
        raise argparse.ArgumentTypeError(f"no adapter is called {name}; there are {', '.join(TOOLS)}")
    return Tool(name=name, python=python or sys.executable)


def _run(case: Case, tool: Tool, out: Path) -> None:
    result = run(case, tool, (out / "work" / tool.name).resolve())
    result.write(out / tool.name / f"{case.name}.json")
    said = [(each["who"], each["phase"], each["ms_per_step"]) for each in result.answer["findings"]]
    print(f"{tool.name} {case.name}: {result.answer['verdict']} {said} {result.failure[-200:]}", flush=True)


def _price(tool: Tool, out: Path, pairs: int) -> None:
    """Pairs of one training: without the tool and with it, in the same interpreter, the first by turns."""
    case = next(each for each in CASES if each.name == PRICED)
    taken = []
    for pair in range(pairs):
        order = [Tool(name="", python=tool.python), tool]
        results = {
            each.name: run(case, each, (out / "work" / "price").resolve()) for each in order[:: 1 - 2 * (pair % 2)]
        }
        both = [results[""], results[tool.name]]
        if any(each.truth is None for each in both):
            raise SystemExit(f"{tool.name}: {next(each.failure for each in both if each.failure)}")
        taken.append([[each.cpu_s, each.truth.step_ms, each.truth.cpu_ms] for each in both if each.truth])
        print(f"{tool.name}: [CPU s of the whole, step ms, CPU ms a step] without, with: {taken[-1]}", flush=True)
    (out / tool.name).mkdir(parents=True, exist_ok=True)
    (out / tool.name / "price.jsonl").write_text("".join(json.dumps(each) + "\n" for each in taken))


if __name__ == "__main__":
    sys.exit(main())
