"""Known delays: `delay(place)`, called once in each step, sleeps where the plan has it, and notes how long it took.
`mark(name)` notes when a step came so far, `mark("end")` ends it; `watch` notes when collectives that are waited for at
once are called and have their results, `watch_functional` when functional ones are called, waited for, and have them;
`meet(function, …)` does so of another that is waited for at once.

The plan is a JSON file: {"steps": of a window, "windows": [null | [place, rank, milliseconds], ...]}.
"""

import json
import time
from pathlib import Path


class Delays:
    def __init__(self, plan, rank):
        read = json.loads(Path(plan).read_text())
        self.window, self.windows, self.rank = read["steps"], read["windows"], rank
        self.steps = self.window * len(self.windows)
        self.slept_ns, self.marks_ns, self.meetings_ns = {}, {}, []
        self.reached, self.met = {}, []  # in this step

    def planned(self, place, step):
        """How many ms the plan has for this rank and place in a step."""
        where, rank, ms = self.windows[min(step // self.window, len(self.windows) - 1)] or ("", -1, 0)
        return ms if (place, self.rank) == (where, rank) else 0

    def __call__(self, place):
        slept = self.slept_ns.setdefault(place, [])
        begin = time.perf_counter_ns()
        if ms := self.planned(place, len(slept)):
            time.sleep(ms / 1e3)
        slept.append(time.perf_counter_ns() - begin)

    def mark(self, name):
        self.reached[name] = time.perf_counter_ns()
        if name == "end":
            for its, ns in self.reached.items():
                self.marks_ns.setdefault(its, []).append(ns)
            self.meetings_ns.append(self.met)
            self.reached, self.met = {}, []

    def meet(self, function, *values, **named):
        called = time.perf_counter_ns()
        result = function(*values, **named)
        self.met.append((called, called, time.perf_counter_ns()))
        return result

    def watch(self, group, collectives, work):
        for name in collectives:
            setattr(group, name, self._noting_call(getattr(group, name), 2))
        work.wait = self._noting_end(work.wait)

    def watch_functional(self, module, collectives):
        for name in collectives:
            setattr(module, name, self._noting_call(getattr(module, name), 1))
        module.wait_tensor = self._noting_wait(module.wait_tensor)

    def _noting_call(self, original, times):
        def call(*values, **named):
            self.met.append([time.perf_counter_ns()] * times)
            return original(*values, **named)

        return call

    def _noting_wait(self, original):
        def wait(*values, **named):
            self.met[-1].append(time.perf_counter_ns())
            result = original(*values, **named)
            self.met[-1].append(time.perf_counter_ns())
            return result

        return wait

    def _noting_end(self, original):
        def wait(*values, **named):
            result = original(*values, **named)
            self.met[-1].append(time.perf_counter_ns())
            return result

        return wait

    def write(self, folder):
        folder.mkdir(exist_ok=True)
        noted = {"slept_ns": self.slept_ns, "marks_ns": self.marks_ns, "meetings_ns": self.meetings_ns}
        (folder / f"rank{self.rank}.json").write_text(json.dumps(noted))
