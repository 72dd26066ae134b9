"""What every backend must learn, in numpy: a perceptron of two layers trained by momentum on the joined batch."""

import numpy as np

LOCAL, FEATURES, HIDDEN, CLASSES = 6, 5, 7, 3
RATE, MOMENTUM = 0.125, 0.75  # exact in float32 too, in which Paddle keeps them under fp64


def initial(seed):
    """Weights [inputs, outputs] and biases of both layers, float64."""
    random = np.random.default_rng(seed)
    shapes = ((FEATURES, HIDDEN), (HIDDEN,), (HIDDEN, CLASSES), (CLASSES,))
    return [random.standard_normal(shape) / 2 for shape in shapes]


def joined_batch(step, samples):
    """Features [samples, FEATURES] and labels of one step, all ranks' samples together."""
    random = np.random.default_rng(1000 + step)
    return random.standard_normal((samples, FEATURES)), random.integers(CLASSES, size=samples)


def share(run, rank, step, rows=None):
    """The part of the joined batch that is this rank's, in the dtype of the run's model; its first `rows` alone."""
    features, labels = joined_batch(step, run.global_batch_size)
    first = rank * run.rank_batch_size
    mine = slice(first, first + (run.rank_batch_size if rows is None else rows))
    return features[mine].astype(dtype_of(run)), labels[mine]


def dtype_of(run):
    """The model's type, by the seed: no run asks for fp64, which is here to see the last digits."""
    return np.float64 if run.seed == 64 else np.float32


def first_values(run, rank):
    """What a rank begins with: another model on every rank, which the backend has to make rank 0's."""
    return [value.astype(dtype_of(run)) for value in initial(rank)]


def forward(parameters, features, labels):
    """Mean cross entropy, and what its gradients are made of."""
    w1, b1, w2, b2 = parameters
    hidden = np.maximum(features @ w1 + b1, 0)
    logits = hidden @ w2 + b2
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares = odds / odds.sum(axis=1, keepdims=True)
    return -np.log(shares[np.arange(len(labels)), labels]).mean(), hidden, shares


def gradients(parameters, features, labels, hidden, shares):
    """Of the mean cross entropy, in the order of the parameters."""
    errors = (shares - np.eye(CLASSES, dtype=shares.dtype)[labels]) / shares.dtype.type(len(labels))
    back = errors @ parameters[2].T * (hidden > 0)
    return [features.T @ back, back.sum(axis=0), hidden.T @ errors, errors.sum(axis=0)]


def learned(run, steps, rank=None):
    """The parameters after some steps of one process on the joined batch, or on one rank's share of it alone, float64;
    from rank 0's beginning."""
    parameters = [value.astype(np.float64) for value in first_values(run, 0)]
    momenta = [np.zeros_like(value) for value in parameters]
    for step in range(steps):
        whole = joined_batch(step, run.global_batch_size)
        features, labels = whole if rank is None else share(run, rank, step)
        features = features.astype(dtype_of(run)).astype(np.float64)
        _, hidden, shares = forward(parameters, features, labels)
        update(parameters, momenta, gradients(parameters, features, labels, hidden, shares))
    return parameters


def update(parameters, momenta, its_gradients):
    """One step of momentum, in place."""
    for parameter, momentum, gradient in zip(parameters, momenta, its_gradients, strict=True):
        kind = parameter.dtype.type
        momentum[:] = kind(MOMENTUM) * momentum + gradient
        parameter[:] -= kind(RATE) * momentum
