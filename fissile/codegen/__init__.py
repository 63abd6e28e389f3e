"""Code generation: loop programs become one flat machine-code image (DESIGN 3.5, 3.8).

In: loop-IR functions and a target. Out: LLVM text, objects, and an image with no undefined symbol.
Invariant: no string of the user's model reaches generated code.
"""
