"""What the project warns of while a stage runs is in the log of its task run in Prefect."""

from __future__ import annotations

import logging

import pytest


@pytest.mark.slow
@pytest.mark.long
def test_an_alarm_is_in_the_log_of_the_task_run():
    from prefect import flow, task
    from prefect.client.orchestration import get_client
    from prefect.logging.handlers import APILogWorker
    from prefect.testing.utilities import prefect_test_harness

    from tasks.prefect_tasks import send_warnings

    log = logging.getLogger("whetstone.stages")

    @task
    def stage():
        send_warnings()
        send_warnings()  # once in a process
        log.warning("rlvr: step 12, warn: monitor flat_reward: nothing is learned")
        log.info("not worth a line")

    @flow
    def run():
        stage()
        log.warning("outside a task")

    with prefect_test_harness(server_startup_timeout=180):
        run()
        APILogWorker.instance().drain()
        with get_client(sync_client=True) as client:
            lines = [
                (each.message, each.task_run_id is not None)
                for each in client.read_logs()
                if each.name.startswith("whetstone")
            ]
    assert lines == [("rlvr: step 12, warn: monitor flat_reward: nothing is learned", True)]
