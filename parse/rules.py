"""The few numbers by which figures are judged. What a single place alone decides stands there.

How often equal ranks may show as much was measured: pieces of real machines are not independent, since load lasts. With
1 % every tenth point of equal ranks on busy cores accused one, with 0.5 % every thirtieth.
"""

CHANCE, OF_ONE_RUN = 0.001, 0.005
"""How often equal ranks may show as much: by several runs, and by one alone or a single test."""

# Shares of a whole.

MATERIAL = 0.002
"""What saves less of a step is no finding: no rank equals another to the ns."""
WORTH_NAMING = 0.01
"""What takes less of a step is not named."""
SMALL = 0.05
"""What is less of the whole is left out beside the rest; one in twenty is an exception."""
NOTABLE = 0.1
"""What is less of a delay, or of the largest of its kind, is not named beside that."""
FIFTH = 0.2
"""A part that is less makes no difference by itself."""
OFTEN = 0.3
"""What is in fewer of the steps is seldom."""
HALF = 0.5
"""What makes so much of a thing explains it, belongs to it, or has most of it."""
LASTS = 0.6
"""What is in so many of the pieces, or the steps, goes on in all."""
MOSTLY = 0.8
"""What keeps to a rule so often has it."""
NEARLY_ALL = 0.9
"""What has so much of a thing has all of it."""

# How many, and how many times.

FEW = 3
"""Fewer observations are none, and as many are named one by one."""
EVENTS = 4
"""Fewer events have no rule."""
ENOUGH = 10
"""So many observations show how they scatter."""
PIECES = 10
"""A window has so many pieces at least: steps of a run are correlated, so pieces are what is tested and averaged."""
MANIFOLD = 1.5
"""What is so many times the others is notable."""
FAR = 3.0
"""What is so many times another, or more, is of another kind: busy ranks differ by less."""

READ_AT_ONCE = 250_000
"""Ranks × steps that are read, or kept in pieces, at once: what bounds the memory."""
