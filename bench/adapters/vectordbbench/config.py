from typing import ClassVar

from pydantic import BaseModel, SecretStr

from ..api import DBCaseConfig, DBConfig, IndexType, MetricType


class PgWarpConfig(DBConfig):
    # A server that trusts the user, or asks the operating system, needs no password.
    _extra_empty_skip: ClassVar[frozenset[str]] = frozenset({"password"})

    user_name: SecretStr = SecretStr("postgres")
    password: SecretStr = SecretStr("")
    host: str = "localhost"
    port: int = 5432
    db_name: str = "postgres"
    table_name: str = "vdbbench_pgwarp"

    def to_dict(self) -> dict:
        return {
            "connect_config": {
                "host": self.host,
                "port": self.port,
                "dbname": self.db_name,
                "user": self.user_name.get_secret_value(),
                "password": self.password.get_secret_value(),
            },
            "table_name": self.table_name,
        }


class PgWarpIndexConfig(BaseModel, DBCaseConfig):
    """The index has its default options; what you ask of a search is its recall."""

    index: IndexType = IndexType.IVFPQ
    metric_type: MetricType | None = None
    target_recall: float = 0.95
    # The id as an attribute of the index, for the cases that filter by it: 9 bytes more for each row. Loaded rows serve
    # several cases, so that the client does not know which of them filter.
    filter_by_id: bool = True
    maintenance_work_mem: str | None = None
    max_parallel_workers: int | None = None

    def metric(self) -> str:
        if self.metric_type is None:
            raise ValueError("the case sets the metric before it uses the database")
        names = {MetricType.L2: "l2", MetricType.COSINE: "cosine", MetricType.IP: "ip", MetricType.DP: "ip"}
        if self.metric_type not in names:
            raise ValueError(f"pgwarp has no index for metric {self.metric_type}")
        return names[self.metric_type]

    def index_param(self) -> dict:
        settings = {
            "maintenance_work_mem": self.maintenance_work_mem,
            "max_parallel_maintenance_workers": self.max_parallel_workers,
            "max_parallel_workers": self.max_parallel_workers,
        }
        return {
            "metric": self.metric(),
            "attributes": ["id"] if self.filter_by_id else [],
            "settings": {name: str(value) for name, value in settings.items() if value is not None},
        }

    def search_param(self) -> dict:
        return {"target_recall": self.target_recall}
