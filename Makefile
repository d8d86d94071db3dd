# make demo    a real Pulsar, real ledgers, the main job from end to end; make demo METADATA=oxia without a ZooKeeper
# make demo STORY=switch  two bookie clusters, brokers switched from one to the other and back under load
# make demo STORY=trash  topics deleted under their consumers come back from the trash, every message and position counted
# make demo STORY=blue-green  two Pulsar clusters, clients moved from one to the other while they run, every message counted
# make check   lint, types, import contracts, unit tests: two minutes, without any server
# make test    all of that and all tests on the real servers; make test WORKERS=1 runs one file at a time
# make bench   every benchmark; make bench BENCH=sweep runs one
# make broker-jar   the jar for brokers (broker/), tested by its own tests; the wheel brings it
# make wheel   sdist and wheel in dist/, the wheel built from the sdist
# make pythons the unit tests on each Python from 3.10 to 3.13 that this machine has
# make matrix  one scenario with each Pulsar, store, Spark, Python and client that can be had: writes docs/compatibility.md;
#              resumed if called again, results and logs in build/matrix; CELLS="base python-3.12" for some, OXIA=PROGRAM of 0.17.1
# make archive what Spark's executors get: dist/bookwarden-env.tar.gz
# make soak    what takes hours: the simulation, a million steps
# make soak STORM=switch  real brokers switched back and forth under load: 20 kills, brokers that disagree for a minute, lost sessions;
#              KILLS=50 for more, SEED=7 for the kills of an earlier one
# make soak STORM=copy    ledgers copied to another bookie cluster while the copier and bookies are killed, and topics deleted; KILLS, SEED
# make soak STORM=move    20 topics moved to another bookie cluster under load, while they change, and back; TOPICS=30 under load
# make soak STORM=follow  topics live and brokers leave ledgers behind, while follow, ZooKeeper and leaders of Oxia go, a namespace of 100,000
#              topics too, and the metadata is moved; 40 minutes; KILLS, SEED, ACTS="life kills vanish leaders move" for some of it
# make soak STORM=broker-marks  brokers that mark, through ten minutes of every kind of drop, 20 kills, and a ZooKeeper that goes: by its own
#              log each ledger is in the outbox before it leaves its node; KILLS, SEED, MINUTES, VERSION=4.2.4, MODE=two-phase,
#              ACTS="life kills topic leader many publish side store" for some of it; VERSION=4.0.4 and 5.0.0-M1 are the
#              broker's alone, as are 3.0.0, 3.3.6 and 4.0.0, which are refused; METADATA=oxia for all but leader and many, with
#              OXIA=PROGRAM of 0.14.2 or newer
# make soak STORM=blue-green  Java clients of every kind moved from one Pulsar to another, each message counted, and a third cluster
#              that replicates; 200 topics with late consumers, and 200 whose broker is killed, TOPICS; VERSIONS=4.2.4:4.2.4 for one pair of
#              blue and green, ACTS="late killed rows restarted replicated deadlock refused" for some
# make soak STORM=spark   a master and two workers of Spark with users and environments of their own: executors, tasks and drivers killed while
#              20,000 marks of each act are swept, each accounted for; half an hour; MARKS=2000, KILLS, SEED, ACTS="journal sends" for some
# make soak STORM=damage  nodes of a real cluster damaged in 4,000 ways, swept and scanned: nothing that lives goes, each leak of an untidy
#              cluster does; ten minutes; VARIANTS, SEED, METADATA=oxia, ACTS="fuzz scan untidy" for some of it; exit code 1 if anything is lost
# make soak STORM=trash   topics deleted, trimmed and expired while they are restored: a sweep at its deletes in 1,000 restores, brokers and
#              restores killed, clients that hammer the name, two operators, every kind of topic, a namespace of 1,000 topics: every
#              message counted; ROUNDS, SEED, VERSION=4.2.4, METADATA=oxia, BROKERS=2, OXIA=PROGRAM of 0.14.2 or newer,
#              ACTS="rows sweep kills hammer operators kinds many" for some
# make soak STORM=tests   the tests that make test leaves out: faults over and over; a quarter of an hour
# make soak STORM=played  all commands of tests/data/played from the wheel, those that start Spark too, and some on the newest Python;
#              UPDATE_PLAYED=1 writes the files anew
# make schema  generate conf/schema from the settings
# make docs    generate docs/reference, docs/metrics.md and conf/monitoring/boards from the command line, settings and tables
# make proto   generate src/bookwarden/wire/pb from proto/
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Those of make pythons, each with a virtual environment of its own.
PYTHONS ?= 3.10 3.11 3.12 3.13
# As many as processors and memory allow: tests/conftest.py. Most of what tests do is waiting for servers.
WORKERS ?= auto

BROKER_JAR := src/bookwarden/bookie_clusters/jar/bookwarden-broker.jar
BROKER_SOURCES := broker/pom.xml $(shell find broker/src tests/data/bookie_cluster_registry -type f 2>/dev/null)

# Side by side: on a new machine the one waits for PyPI while the other waits for Maven.
SIDE_BY_SIDE := $(MAKE) --no-print-directory --silent --jobs 2

.PHONY: demo test check broker-jar lint unit pythons matrix bench soak wheel archive schema docs proto clean

$(STAMP): setup.cfg pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 10) else "bookwarden needs Python 3.10 or newer; call make PYTHON=/path/to/python3")'
	@echo "== virtual environment in $(VENV) (once; about a minute)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@PYTHONWARNINGS=ignore $(BIN)/python -m pip install -q --disable-pip-version-check -e '.[spark,dev]'
	@touch $@

demo:
	@$(SIDE_BY_SIDE) $(STAMP) $(if $(filter blue-green,$(STORY)),,$(BROKER_JAR))
	@exec $(BIN)/bookwarden demo $(if $(METADATA),--metadata $(METADATA)) $(if $(STORY),--story $(STORY))

test:
	@$(SIDE_BY_SIDE) lint $(BROKER_JAR)
	@PYTHONPATH=tests $(BIN)/python -m servers.once
	@echo "== tests on the real servers"
	@exec $(BIN)/python -m pytest -n $(WORKERS) --no-loadscope-reorder --tb=short

check: lint unit

lint: $(STAMP)
	@echo "== lint"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@echo "== types"
	@$(BIN)/mypy
	@echo "== import contracts"
	@$(BIN)/lint-imports

unit: $(STAMP)
	@echo "== unit tests"
	@exec $(BIN)/python -m pytest -n $(WORKERS) --no-loadscope-reorder tests/unit

matrix: $(STAMP) $(BROKER_JAR)
	@PYTHONPATH=tests exec $(BIN)/python -m servers.matrix.run $(if $(CELLS),--cells $(CELLS)) $(if $(OXIA),--oxia $(OXIA))

pythons:
	@failed=; for version in $(PYTHONS); do \
		python=$$(command -v python$$version); \
		"$$python" -c '' 2>/dev/null || python=$$(ls $${PYENV_ROOT:-$$HOME/.pyenv}/versions/$$version.*/bin/python 2>/dev/null | tail -n 1); \
		if test -z "$$python"; then echo "== Python $$version: not on this machine"; continue; fi; \
		echo "== unit tests on $$("$$python" -V)"; \
		$(MAKE) --no-print-directory unit PYTHON="$$python" VENV=$(VENV)-$$version || failed="$$failed $$version"; \
	done; test -z "$$failed" || { echo "== unit tests fail on Python$$failed"; exit 1; }

bench: $(STAMP) $(if $(filter-out switch,$(or $(BENCH),switch)),,$(BROKER_JAR))
	@exec $(BIN)/python -m benchmarks $(BENCH)

broker-jar: $(BROKER_JAR)

$(BROKER_JAR): $(BROKER_SOURCES)
	@echo "== the jar for brokers, and its tests"
	@command -v mvn >/dev/null || { echo "Maven is needed (package maven), with a JDK of Java 17 or newer"; exit 1; }
	@mvn -q -B -Dstyle.color=never --strict-checksums -f broker/pom.xml package
	@mkdir -p $(@D)
	@cp broker/target/bookwarden-broker.jar $@

wheel: $(STAMP) $(BROKER_JAR)
	@rm -rf dist/bookwarden-[0-9]* src/*.egg-info
	@$(BIN)/python -m build --outdir dist .

soak: $(STAMP)
ifeq ($(STORM),switch)
	@PYTHONPATH=tests exec $(BIN)/python -m servers.switching.soak --kills $(or $(KILLS),20) $(if $(SEED),--seed $(SEED))
else ifeq ($(STORM),copy)
	@PYTHONPATH=tests exec $(BIN)/python -m servers.switching.copying_storm --kills $(or $(KILLS),20) $(if $(SEED),--seed $(SEED))
else ifeq ($(STORM),move)
	@PYTHONPATH=tests exec $(BIN)/python -m servers.switching.moving_soak $(if $(TOPICS),--topics $(TOPICS))
else ifeq ($(STORM),follow)
	@PYTHONPATH=tests exec $(BIN)/python -m servers.follow.soak --kills $(or $(KILLS),10) $(if $(SEED),--seed $(SEED)) $(if $(ACTS),--acts $(ACTS))
else ifeq ($(STORM),broker-marks)
	@PYTHONPATH=tests exec $(BIN)/python -m servers.broker_marks.soak --kills $(or $(KILLS),20) $(if $(SEED),--seed $(SEED)) \
		$(if $(MINUTES),--minutes $(MINUTES)) $(if $(VERSION),--version $(VERSION)) $(if $(MODE),--mode $(MODE)) \
		$(if $(METADATA),--metadata $(METADATA)) $(if $(OXIA),--oxia $(OXIA)) $(if $(ACTS),--acts $(ACTS))
else ifeq ($(STORM),spark)
	@PYTHONPATH=tests exec $(BIN)/python -m servers.spark_storm.soak --marks $(or $(MARKS),20000) --kills $(or $(KILLS),3) $(if $(SEED),--seed $(SEED)) \
		$(if $(ACTS),--acts $(ACTS))
else ifeq ($(STORM),damage)
	@PYTHONPATH=tests exec $(BIN)/python -m servers.damage.soak --variants $(or $(VARIANTS),4000) $(if $(SEED),--seed $(SEED)) \
		$(if $(METADATA),--metadata $(METADATA)) $(if $(ACTS),--acts $(ACTS))
else ifeq ($(STORM),trash)
	@PYTHONPATH=tests exec $(BIN)/python -m servers.trash_soak.soak $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(SEED),--seed $(SEED)) \
		$(if $(VERSION),--version $(VERSION)) $(if $(METADATA),--metadata $(METADATA)) $(if $(OXIA),--oxia $(OXIA)) $(if $(BROKERS),--brokers $(BROKERS)) \
		$(if $(ACTS),--acts $(ACTS))
else ifeq ($(STORM),tests)
	@exec $(BIN)/python -m pytest -n $(WORKERS) --no-loadscope-reorder --tb=short -m storm tests/integration
else ifeq ($(STORM),played)
	@PLAYED=all exec $(BIN)/python -m pytest --timeout 3600 tests/integration/test_played_commands.py
else ifeq ($(STORM),blue-green)
	@PYTHONPATH=tests exec $(BIN)/python -m servers.blue_green.soak $(if $(VERSIONS),--versions $(VERSIONS)) \
		$(if $(TOPICS),--topics $(TOPICS)) $(if $(ACTS),--acts $(ACTS))
else
	@PYTHONPATH=tests exec $(BIN)/python -m simulation --steps $(or $(STEPS),1000000) $(if $(FROM),--from $(FROM))
endif

archive: $(STAMP)
	@exec $(BIN)/python -m bookwarden.pipelines.archive

schema: $(STAMP)
	@mkdir -p conf/schema
	@$(BIN)/python -c 'import sys; from bookwarden.config import settings_schema; sys.stdout.write(settings_schema())' \
		> conf/schema/bookwarden.schema.json

docs: $(STAMP)
	@$(BIN)/python -m bookwarden_dev.reference
	@$(BIN)/python -m bookwarden_dev.boards

proto: $(STAMP)
	@$(BIN)/python -m grpc_tools.protoc -Ibookwarden/wire/pb=proto --python_out=src --pyi_out=src \
		$(patsubst proto/%,bookwarden/wire/pb/%,$(wildcard proto/*.proto))

clean:
	rm -rf $(VENV) $(PYTHONS:%=$(VENV)-%) $(VENV)-matrix-* build dist src/*.egg-info benchmarks/out broker/target $(dir $(BROKER_JAR))
