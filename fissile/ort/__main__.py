"""`python -m fissile.ort app.py ARGS`: run a program with onnxruntime replaced by this package.

In: a program or `-m module` with its arguments. Out: the program's own behaviour and exit code.
"""

import sys

from fissile import ort
from fissile.ort.replace import run_program

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        print("usage: python -m fissile.ort PROGRAM.py ARGS...   or   -m MODULE ARGS...")
        raise SystemExit(0 if len(sys.argv) > 1 else 2)
    ort.install()
    run_program(sys.argv[1:])
