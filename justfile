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

# thousands of examples instead of hundreds, long oracles
slow:
    HYPOTHESIS_PROFILE=thorough pytest -n 2

format:
    ruff check --fix .
    ruff format .
