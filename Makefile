.DEFAULT_GOAL := help
.PHONY: help setup setup-run setup-lint setup-lambda run test test-soak test-release bench bench-large bench-compare profile lint invoke \
	sam-local test-sam-local deploy

# Where the Python tools go.
VENV := target/venv
ARGS ?=
BENCH ?=
BEFORE ?=
AFTER ?= target/bench/last.json
FUNCTION ?= add
SOAK_SECONDS ?= 600
EVENT ?= events/$(FUNCTION)/one.json

help: ## Shows these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-12s %s\n", $$1, $$2 }' Makefile

run: setup-run ## Serves everything on 127.0.0.1:3000; ARGS="--manual-clock 0" passes options on
	@exec cargo run --quiet --release -p local --bin punctual -- $(ARGS)

test: setup ## Checks format, lints, documentation examples and every test
	@scripts/test

bench: setup-run ## Measures the release build on this machine; BENCH="push --late-tasks 100" for a part
	@cargo build --quiet --release --workspace --bins && target/release/bench $(BENCH)

bench-large: ## The same with a million tasks due at once; takes long
	@$(MAKE) bench BENCH="refresh hot --backlog 1000000 --hot-tasks 1000000 --json target/bench/large.json"

bench-compare: ## Two results beside each other: BEFORE=target/bench/a.json AFTER=target/bench/last.json
	@cargo run --quiet --release -p bench --bin compare -- $(BEFORE) $(AFTER)

profile: setup-run ## Draws where the runner's processor time goes, docs/profile.svg; Linux only
	@scripts/setup perf
	@scripts/profile docs/profile.svg

test-soak: setup ## Tests random histories and crowds for SOAK_SECONDS=600, then 50 kills of each process
	@PUNCTUAL_SOAK_SECONDS=$(SOAK_SECONDS) cargo test --release -p tests --test soak soak_ -- --nocapture --test-threads 2
	@cargo build --quiet -p local
	@PUNCTUAL_KILLS=50 cargo test -p tests --test integration kill:: -- --nocapture --test-threads 1

test-release: setup ## Starts each release binary under an emulated Lambda Runtime API, and sends it its events
	@cargo nextest run --release --workspace --test runtime --test handlers

lint: setup-lint ## Checks the template, licences and sources
	@scripts/lint $(VENV)

invoke: setup-lambda ## Runs one function under the Lambda protocol: FUNCTION=add EVENT=events/add/one.json
	@scripts/invoke $(VENV) $(FUNCTION) $(EVENT)

sam-local: setup-lambda ## Serves the built functions in containers with sam local start-api on port 3001
	@scripts/sam-local $(VENV) serve

test-sam-local: setup-lambda ## Builds the functions and runs each in a container; needs a container engine
	@scripts/sam-local $(VENV) check

deploy: setup-lambda ## Builds all functions and deploys them, asking for each parameter
	@PATH="$(CURDIR)/$(VENV)/bin:$$PATH" SAM_CLI_TELEMETRY=0 sh -c 'sam build && sam deploy --guided'

setup: setup-run ## Installs what the tests need
	@scripts/setup curl openssl nextest

setup-run:
	@scripts/setup rust redis

setup-lint:
	@scripts/setup rust deny
	@scripts/setup venv $(VENV) 'aws-sam-cli>=1.170,<2' 'cfn-lint>=1.58,<2'
	@scripts/setup venv $(VENV)-checkov 'checkov>=3.2,<4' # it wants other versions of what sam wants

setup-lambda:
	@scripts/setup rust redis
	@scripts/setup venv $(VENV) 'aws-sam-cli>=1.170,<2' 'cargo-lambda>=1.9,<2' 'ziglang>=0.13'
