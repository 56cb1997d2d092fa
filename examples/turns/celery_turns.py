"""Celery tasks that wait for a turn of their tenant, so that no tenant's tasks delay all others.

    from celery_turns import FairTask

    @app.task(base=FairTask)
    def convert(tenant, video):
        ...

A task that waits needs a place in a worker. Threads are cheap places; `line.turns.slots` says how
many of the tasks run:

    celery --app videos worker --pool threads --concurrency 200 --prefetch-multiplier 1
"""

import os

from celery import Task
from evenkeel_client import Busy, Late, Turns

turns = Turns(os.environ.get("EVENKEEL_LINE", "tcp://127.0.0.1:7070"))


class FairTask(Task):
    """A task whose first argument is its tenant."""

    abstract = True
    # A task that got no turn may come back as often as it has to.
    max_retries = None
    # The longest wait for a turn, in seconds; None: as long as the door allows.
    turn_wait = None
    # After this number of seconds a task without a turn comes back.
    turn_retry = 10

    def __call__(self, tenant, *args, **kwargs):
        try:
            with turns.take(f"tenant:{tenant}", wait=self.turn_wait):
                return self.run(tenant, *args, **kwargs)
        except (Busy, Late) as error:
            raise self.retry(exc=error, countdown=self.turn_retry)
