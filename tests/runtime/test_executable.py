"""The executable from outside: feeds, outputs, shapes, refusals, copies; all in child processes."""

from typing import Any


def test_runs_alone_and_with_a_gang(child: Any) -> None:
    text = """
results = []
for threads in (1, 2, 3):
    exe = load(TOYS + "/rows.fsl", threads=threads)
    for n in (1, 2, 17, 1000, 0, 17):
        feeds = rows_feeds(n)
        results.append(rows_right(feeds, exe.run(feeds)))
answer(results)
"""
    assert child(text) == [True] * 18
