"""A secret of the job is in the job's environment and nowhere else."""

import json
import os
from pathlib import Path

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from overbrainer_airflow.operators.run_export import RunExportOperator
from tests.airflow.conftest import MakeConnection, TaskLog
from tests.support.exports import MAKE_GGUF, staged_job, task_context

SECRET = "hf_s3cr3t 'value' $HOME"

SCRIPT = (
    # What the job sees is compared by the job, and what anybody sees is written down.
    'printf %s "$HF_TOKEN" | sha256sum >seen; '
    "for process in /proc/[0-9]*; do tr '\\0' ' ' <$process/cmdline; echo; done >argv 2>/dev/null; "
    f"{MAKE_GGUF}"
)


@pytest.mark.parametrize("ssh_conn_id", [None, "gpu"], ids=["local", "ssh"])
@pytest.mark.parametrize("source", ["connection:hub", "variable:hub_token"])
def test_a_secret_reaches_the_job_and_no_list_file_log_or_xcom(
    tmp_path: Path,
    connect: MakeConnection,
    monkeypatch: pytest.MonkeyPatch,
    task_log: TaskLog,
    ssh_conn_id: str | None,
    source: str,
) -> None:
    import hashlib

    connect()
    monkeypatch.setenv("AIRFLOW_CONN_HUB", json.dumps({"conn_type": "generic", "password": SECRET}))
    monkeypatch.setenv("AIRFLOW_VAR_HUB_TOKEN", SECRET)
    staged = staged_job(tmp_path / "runs", SCRIPT, ssh_conn_id)
    task = RunExportOperator(
        task_id="run_export", staged=staged.plain(), secrets={"HF_TOKEN": source}
    )
    exported = task.execute(task_context())

    job_dir = Path(staged.job_dir)
    assert (job_dir / "seen").read_text().split()[0] == hashlib.sha256(SECRET.encode()).hexdigest()
    assert "export.sh" in (job_dir / "argv").read_text()
    for file in job_dir.rglob("*"):
        assert not file.is_file() or b"s3cr3t" not in file.read_bytes(), file
    assert "s3cr3t" not in json.dumps(exported)
    assert [line for line in task_log.lines if "s3cr3t" in line] == []
    assert "s3cr3t" not in repr({name: getattr(task, name) for name in task.template_fields})
    assert "HF_TOKEN" not in os.environ


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("connection:nowhere", "HF_TOKEN: there is no connection nowhere"),
        ("variable:nowhere", "HF_TOKEN: the variable nowhere holds no value"),
        ("hf_abcdef", "give connection:<id> or variable:<key>"),
        ("connection:", "give connection:<id> or variable:<key>"),
    ],
)
def test_a_secret_that_is_not_there_starts_nothing(
    tmp_path: Path, source: str, message: str
) -> None:
    staged = staged_job(tmp_path / "runs", "touch begun")
    task = RunExportOperator(
        task_id="run_export", staged=staged.plain(), secrets={"HF_TOKEN": source}
    )
    with pytest.raises(AirflowFailException, match=message):
        task.execute(task_context())
    assert not (Path(staged.job_dir) / "begun").exists()


def test_a_name_that_is_no_variable_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_VAR_TOKEN", "x")
    staged = staged_job(tmp_path / "runs", "touch begun")
    task = RunExportOperator(
        task_id="run_export", staged=staged.plain(), secrets={"A; touch /tmp/x": "variable:token"}
    )
    with pytest.raises(AirflowFailException, match="cannot name an environment variable"):
        task.execute(task_context())
