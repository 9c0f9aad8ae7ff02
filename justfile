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
    NO_MKDOCS_2_WARNING=1 mkdocs build --strict --quiet --site-dir "$(mktemp -d)"

# fits every number from the measurements and writes the files that ship; prints their count and errors
calibrate data="../shared/data":
    python -m dovetail.accuracy.regenerate {{data}}
    python -m dovetail.accuracy.regenerate --record

# the accuracy page and its plots, and the table of the README
accuracy data="../shared/data":
    python -m dovetail.report {{data}}/training_runs.csv docs

# the silicon model against published chips, as docs/explanation/silicon.md has it
silicon:
    python -m dovetail.accuracy.silicon

# thousands of examples instead of hundreds, long oracles
slow:
    HYPOTHESIS_PROFILE=thorough pytest -n 2

format:
    ruff check --fix .
    ruff format .
