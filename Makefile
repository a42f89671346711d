# The README's commands. PYTHON is any Python 3.10 to 3.13; everything else is set up by them.
PYTHON ?= python3
MACHINE ?= local

.PHONY: demo test check format bench-import bench-follow bench-transfer

demo:
	$(PYTHON) demo/run.py --machine $(MACHINE)

test:
	$(PYTHON) tests/run.py

check:
	$(PYTHON) tests/run.py --only lint

format:
	$(PYTHON) tests/run.py --only format

bench-import bench-follow bench-transfer:
	$(PYTHON) tests/run.py --only $@
