"""A workload of somebody's own that knows secrets: it reads them from its environment, and tells one when it dies."""

import os

from tests.mpi.ranks.user_workloads import Line


class Discreet(Line):
    """Trains, having read its secret where the job inherited it."""

    def __init__(self, run, device, rank):
        super().__init__(run, device, rank)
        if not os.environ["HF_TOKEN"]:
            raise RuntimeError("the job inherited no secret")


class Talkative(Line):
    """Ends in a step with its secrets in the text of the exception, and of the one that caused it."""

    def update(self):
        secret = os.environ["HF_TOKEN"]
        try:
            raise KeyError(f"https://me:{secret}@host/artifacts, 'Authorization: Bearer {secret}'")
        except KeyError as error:
            settings = {"api_key": secret, "steps": 3}
            raise RuntimeError(f"WANDB_API_KEY={secret} is refused: {settings}; login --password {secret}") from error
