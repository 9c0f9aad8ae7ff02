# `just check` is what must pass before a change lands; `just slow` is what backs the claims in the docs.

default: check

# lint, types, import contract, tests, docs
check: lint types imports test docs

lint:
    ruff check .
    ruff format --check .

types:
    pyright

imports:
    lint-imports

test:
    pytest -n 2 -m "not slow"

docs:
    # not --quiet, with which mkdocs takes no warning for a failure
    NO_MKDOCS_2_WARNING=1 mkdocs build --strict --site-dir "$(mktemp -d)"

# what follows from the code: pages of commands, JSON fields and files, the support matrix, plots of results, the picture
reference:
    python docs/generate_reference.py
    python docs/reference/support.py
    python docs/results/plots.py
    python docs/answer_picture.py

# fits every number from the measurements and writes the files that ship; prints their count and errors
calibrate data="../shared/data":
    python -m dovetail.accuracy.regenerate {{data}}
    python -m dovetail.accuracy.regenerate --record {{data}}

# the accuracy page and its plots, and the table of the README
accuracy data="../shared/data":
    python -m dovetail.report docs {{data}}/training_runs.csv {{data}}/training_runs_2.csv

# the silicon model against published chips, as docs/explanation/silicon.md has it
silicon:
    python -m dovetail.accuracy.silicon

# Power of steps against published figures: the table of docs/explanation/energy.md.
power:
    python -m dovetail.accuracy.power

# thousands of examples instead of hundreds, long oracles
slow:
    HYPOTHESIS_PROFILE=thorough pytest -n 2

# tests and commands with the lowest versions pyproject.toml allows; name torch among the extras for its tests (gigabytes)
lowest extras="cluster,hub,study":
    #!/usr/bin/env bash
    set -euo pipefail
    environment=$(mktemp -d)
    trap 'rm -rf "$environment"' EXIT
    python3.11 -m venv "$environment"
    export PATH="$environment/bin:$PATH" NUMBA_CACHE_DIR="$environment/numba"
    python -m pip install --quiet --constraint constraints.txt --upgrade pip
    python -m pip install --quiet --no-compile --constraint constraints-lowest.txt ".[{{extras}}]" hypothesis plotly pytest
    python -m pip check
    # the tests of torch skip themselves where it is not installed
    python -m pytest --quiet -p no:cacheprovider -m "not slow" tests/test_release.py tests/unit/test_documents.py \
      tests/unit/test_cli_progress.py tests/unit/test_cli_schedule.py tests/unit/models/test_hub.py tests/unit/plans/test_fields.py \
      tests/unit/exploration/test_samplers.py tests/unit/exploration/test_store.py tests/unit/exploration/test_store_views.py \
      tests/unit/exploration/test_ray_executor.py tests/unit/exploration/test_study_on_ray.py \
      tests/unit/report/test_page.py \
      tests/oracle/test_dtensor.py tests/oracle/test_traced_modules.py tests/oracle/test_traced_transformers.py tests/conformance/test_huggingface_configs.py
    cd "$environment"
    cat > study.yaml <<'YAML'
    name: lowest
    jobs: [{model: gpt3-1.3b, seq_len: 2048, global_batch: 64}]
    hardware: {base: tpu-v4, vary: {tensor_cores: [4, 8], hbm_stacks: [2, 4]}}
    cluster: {chips: 16, framework: ideal}
    plans: {context_parallel: [1], pipeline_schedule: [1f1b], micro_batch: [1], zero_stage: [0], recompute: [none],
            sequence_parallel: [false]}
    YAML
    dovetail plan --model llama-3.1-8b --chip h100-sxm --chips 8 --global-batch 64 --seq-len 4096 --json > plan.json
    dovetail explore study.yaml --out run --json > explore.json
    dovetail validate --json > validate.json

# wheel and source distribution, checked, and the wheel installed alone, in at most 350 MB, and asked for a plan
dist out="dist":
    #!/usr/bin/env bash
    set -euo pipefail
    tools=$(mktemp -d) fresh=$(mktemp -d)
    trap 'rm -rf "$tools" "$fresh"' EXIT
    python3 -m venv "$tools"
    "$tools/bin/python" -m pip install --quiet build==1.6.1 twine==7.0.0
    PIP_CONSTRAINT="$PWD/constraints.txt" "$tools/bin/python" -m build --outdir "{{out}}" .
    wheel=$(realpath "{{out}}")/dovetail-$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)-py3-none-any.whl
    "$tools/bin/twine" check --strict "$wheel" "${wheel%-py3-none-any.whl}.tar.gz"
    python3 -m venv "$fresh"
    "$fresh/bin/python" -m pip install --quiet "$wheel"
    cd "$fresh"
    # what the environment itself brings does not count
    megabytes=$(du -sm --exclude=pip --exclude=setuptools --exclude=pkg_resources lib/python3*/site-packages | cut -f1)
    echo "installed: $megabytes MB"
    test "$megabytes" -le 350
    bin/dovetail models list > models.txt
    NUMBA_CACHE_DIR="$fresh/numba" bin/dovetail plan --model llama-3.1-8b --chip h100-sxm --chips 8 --global-batch 64 \
      --seq-len 4096 --json > plan.json

# reports and the served page in Chromium, with axe-core; needs chromium, node and npm
browser:
    #!/usr/bin/env bash
    set -euo pipefail
    tools=$(mktemp -d)
    trap 'rm -rf "$tools"' EXIT
    npm install --silent --no-audit --no-fund --prefix "$tools" playwright-core@1.65.0 axe-core@4.14.0
    NODE_PATH="$tools/node_modules" pytest tests/browser

format:
    ruff check --fix .
    ruff format .
