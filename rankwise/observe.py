"""Two optional lines of a training script, `for batch in data(loader):` and `step()`: those of hpc.observe."""

from importlib.util import module_from_spec, spec_from_file_location

from rankwise import SOURCE

_spec = spec_from_file_location("_rankwise_lines", SOURCE / "hpc" / "observe" / "__init__.py")
assert _spec is not None and _spec.loader is not None
_lines = module_from_spec(_spec)
_spec.loader.exec_module(_lines)  # not imported: a script's own process has no `hpc` for it
data, step = _lines.data, _lines.step
