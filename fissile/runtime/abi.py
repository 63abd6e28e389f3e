"""The number of the layout that the code in an artifact and the runtime share.

In: nothing. Out: `ABI`, which every manifest has. The layout is that of the context, the gang, patches, launches and
steps (codegen/support/gang.ll, and the constants of `frame`, `program` and `threads` that mirror it), and the
signatures of an image's entries (`image`). Invariant: whoever changes any of it raises `ABI`, since an old image in a
new runtime would write where it must not; tests/runtime/test_abi.py holds the layout's hash for each number.
"""

ABI = 1
BEFORE_ABI = 1  # the layout of artifacts whose manifest has no number yet
