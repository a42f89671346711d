"""Running the project's DAG files through Airflow inside a test."""

from pathlib import Path
from typing import Any

DAGS = Path(__file__).resolve().parents[2] / "dags"


def dag_bag(path: Path) -> Any:
    """Return Airflow's view of a DAG file or folder, stored as its DAG processor would.

    From Airflow 3.3 on a DAG that is not stored cannot be run.
    """
    from airflow.dag_processing.bundles.manager import DagBundlesManager

    try:
        from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
    except ImportError:  # Airflow 3.1
        from airflow.models.dagbag import DagBag, sync_bag_to_db  # type: ignore[no-redef]

    bag = DagBag(dag_folder=str(path))
    assert bag.import_errors == {}
    DagBundlesManager().sync_bundles_to_db()  # type: ignore[no-untyped-call]
    sync_bag_to_db(bag, "dags-folder", None)
    return bag


def run_dag(dag_id: str, conf: dict[str, Any] | None = None) -> dict[str, str]:
    """Run one of ``dags/`` as `airflow dags test` does; return each task's state by its id."""
    dag = dag_bag(DAGS / f"{dag_id}.py").dags[dag_id]
    run = dag.test(run_conf=conf)
    return {instance.task_id: str(instance.state) for instance in run.get_task_instances()}
