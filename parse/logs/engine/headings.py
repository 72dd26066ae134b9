"""Progress bars under headings: of those below `Epoch 2/5` the first full one is epoch 2, and the others are none."""

from __future__ import annotations

import dataclasses

import numpy as np

from parse.logs.engine.log_format import NO_NUMBER, Batch, Steps

MAX_DIGITS = 9
"""Epochs with more digits are none that a program counted to."""


class Headings:
    """The heading that the bars of a log stand under, carried from batch to batch."""

    def __init__(self) -> None:
        self._epoch = NO_NUMBER
        """The epoch whose full bar is to come; NO_NUMBER if none is."""
        self._epoch_steps = NO_NUMBER
        """The steps of the first epoch, and so of all."""
        self._counts_steps = True

    def applied(self, batch: Batch) -> Batch:
        """The batch with one step per heading: the first full bar below it, with the heading's epoch.

        Evaluations draw bars below a full one, or count to another number than the first epoch. Below a heading without
        an epoch bars count something else than steps, and are dropped to the end of the log.
        """
        headings = [record for record in batch.records if record.kind == "heading"]
        self._counts_steps &= all("epoch" in record.values for record in headings)
        epochs = [self._epoch, *(_number(record.values.get("epoch", "")) for record in headings)]
        steps = batch.steps
        above = np.searchsorted([record.offset for record in headings], steps.offset)
        epoch = np.array(epochs, np.int64)[above]
        full = np.flatnonzero((steps.step == steps.epoch_steps) & (epoch != NO_NUMBER) & self._counts_steps)
        if len(full) and self._epoch_steps == NO_NUMBER:
            self._epoch_steps = int(steps.epoch_steps[full[0]])
        full = full[steps.epoch_steps[full] == self._epoch_steps]
        _, first = np.unique(above[full], return_index=True)
        indices = full[first]
        self._epoch = NO_NUMBER if len(headings) in above[indices] else epochs[-1]
        columns = {name: column[indices] for name, column in vars(steps).items()}
        return dataclasses.replace(batch, steps=Steps(**{**columns, "epoch": epoch[indices]}))


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= MAX_DIGITS else NO_NUMBER
