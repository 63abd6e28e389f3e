# Each target makes its own environment; nothing has to be installed by hand.
# The OCR models come with a package that wants Python < 3.13, so 3.11 or 3.12 is looked for first.
PYTHON ?= $(shell for p in python3.12 python3.11 python3; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info)' 2>/dev/null && echo $$p && break; done)

.PHONY: demo test zoo clean

demo: .venv-demo/ready
	.venv-demo/bin/python demo/ocr.py

test:
	.ci/run

# make zoo ZOO=folder of NAME.onnx, or of NAME.light.onnx with NAME.json: writes docs/benchmarks.md
# ZOO_OPTIONS: those of bench/zoo.py, and names of models
ZOO ?= zoo
zoo: .venv-zoo/ready
	.venv-zoo/bin/python bench/zoo.py $(ZOO) $(ZOO_OPTIONS)

.venv-zoo/ready: pyproject.toml
	$(PYTHON) -m venv .venv-zoo
	.venv-zoo/bin/python -m pip install --quiet --disable-pip-version-check -e '.[bench]'
	touch $@

# The models are data of a package whose own engine (and its OpenCV) is not needed here.
.venv-demo/ready: pyproject.toml
	$(PYTHON) -m venv .venv-demo
	.venv-demo/bin/python -m pip install --quiet --disable-pip-version-check -e . onnxruntime pillow
	.venv-demo/bin/python -m pip install --quiet --disable-pip-version-check --no-deps \
		rapidocr-onnxruntime==1.4.4
	touch $@

clean:
	rm -rf .venv-ci .venv-demo .venv-zoo build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
