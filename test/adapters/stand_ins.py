"""What the adapters see of the three benchmarks: base classes, types and places to register, and no more.

A test with these runs where the benchmarks and their many packages are not. Names and signatures are those of
ann-benchmarks (June 2025), VectorDBBench (August 2026) and cuvs-bench 26.08.
"""

from pathlib import Path

ANN_BENCHMARKS = {
    "ann_benchmarks/algorithms/base/module.py": """
class BaseANN:
    pass
""",
}

VECTORDBBENCH = {
    "vectordb_bench/backend/filter.py": """
from enum import Enum

class FilterOp(str, Enum):
    NumGE = "NumGE"
    StrEqual = "Label"
    NonFilter = "NonFilter"

class Filter:
    pass
""",
    "vectordb_bench/backend/clients/api.py": """
from abc import ABC, abstractmethod
from enum import Enum
from pydantic import BaseModel

class MetricType(str, Enum):
    L2 = "L2"
    COSINE = "COSINE"
    IP = "IP"
    DP = "DP"
    HAMMING = "HAMMING"

class IndexType(str, Enum):
    IVFPQ = "IVF_PQ"

class DBConfig(ABC, BaseModel):
    db_label: str = ""

    @abstractmethod
    def to_dict(self): ...

class DBCaseConfig(ABC):
    @abstractmethod
    def index_param(self): ...

    @abstractmethod
    def search_param(self): ...

class VectorDB(ABC):
    @abstractmethod
    def __init__(self, dim, db_config, db_case_config, collection_name, drop_old=False, **kwargs): ...

    @abstractmethod
    def init(self): ...

    @abstractmethod
    def insert_embeddings(self, embeddings, metadata, labels_data=None, tenant_labels_data=None, **kwargs): ...

    @abstractmethod
    def search_embedding(self, query, k=100, payload_profile=None, tenant=None): ...

    @abstractmethod
    def optimize(self, data_size=None): ...
""",
    "vectordb_bench/backend/clients/__init__.py": """
from enum import Enum


class DB(Enum):
    Milvus = "Milvus"
    PgVector = "PgVector"

    @property
    def init_cls(self):
        if self == DB.Milvus:
            return None

        if self == DB.PgVector:
            return None

    @property
    def config_cls(self):
        if self == DB.PgVector:
            return None

    def case_config_cls(  # with arguments on lines of their own
        self,
        index_type=None,
    ):
        if self == DB.PgVector:
            return None
""",
    "vectordb_bench/cli/cli.py": """
import click
from typing import Annotated, TypedDict, get_type_hints

called = []

class CommonTypedDict(TypedDict):
    db_label: Annotated[str, click.option("--db-label", default="today")]

def click_parameter_decorators_from_typed_dict(typed_dict):
    def decorate(function):
        for hint in get_type_hints(typed_dict, include_extras=True).values():
            function = hint.__metadata__[0](function)
        return function
    return decorate

@click.group()
def cli(): ...

def run(db, db_config, db_case_config, **parameters):
    called.append((db, db_config, db_case_config, parameters))
""",
    "vectordb_bench/cli/vectordbbench.py": """
from .cli import cli

if __name__ == "__main__":
    cli()
""",
}

CUVS_BENCH = {
    "cuvs_bench/config/__init__.py": "",
    "cuvs_bench/config/algos/other.yaml": "name: other\ngroups: {base: {build: {}, search: {}}}\n",
    "cuvs_bench/backends/_utils.py": """
import numpy as np

def compute_recall(neighbors, groundtruth, k):
    return float(np.mean([len(set(a[:k]) & set(b[:k])) / k for a, b in zip(neighbors.tolist(), groundtruth.tolist())]))
""",
    "cuvs_bench/backends/base.py": """
from dataclasses import dataclass, field
from typing import Any

@dataclass
class BuildResult:
    index_path: str
    build_time_seconds: float
    index_size_bytes: int
    algorithm: str
    build_params: dict
    metadata: dict = field(default_factory=dict)
    success: bool = True
    error_message: Any = None

@dataclass
class SearchResult:
    neighbors: Any
    distances: Any
    search_time_ms: float
    queries_per_second: float
    recall: float
    algorithm: str
    search_params: list
    latency_percentiles: Any = None
    gpu_time_seconds: Any = None
    cpu_time_seconds: Any = None
    metadata: dict = field(default_factory=dict)
    success: bool = True
    error_message: Any = None

class BenchmarkBackend:
    def __init__(self, config):
        self.config = config
""",
    "cuvs_bench/backends/registry.py": """
_backends, _loaders = {}, {}

class _Registry:
    def is_registered(self, name):
        return name in _backends

    def register(self, name, backend_class):
        _backends[name] = backend_class

def get_registry():
    return _Registry()

def get_backend_class(name):
    return _backends[name]

def register_config_loader(name, loader_class):
    _loaders[name] = loader_class

def get_config_loader(name):
    return _loaders[name]
""",
    "cuvs_bench/orchestrator/config_loaders.py": """
import itertools
import os
from dataclasses import dataclass, field
from types import SimpleNamespace

import yaml

@dataclass
class IndexConfig:
    name: str
    algo: str
    build_param: dict
    search_params: list
    file: str

@dataclass
class BenchmarkConfig:
    indexes: list
    backend_config: dict = field(default_factory=dict)

def _expand(grid):
    return [dict(zip(grid, values)) for values in itertools.product(*grid.values())]

class ConfigLoader:
    def load(self, dataset, dataset_path, **kwargs):
        config = SimpleNamespace(subset_size=kwargs.get("subset_size"))
        groups = self._discover_algo_groups({}, dataset, dataset_path, **kwargs)
        groups = [
            (name, group, conf, _expand(conf.get("build", {})), _expand(conf.get("search", {})), meta)
            for name, group, conf, meta in groups
        ]
        return config, self._build_benchmark_configs(config, {}, dataset, dataset_path, groups, **kwargs)

    def load_yaml_file(self, path):
        with open(path) as file:
            return yaml.safe_load(file)

    def gather_algorithm_configs(self, config_path, algorithm_configuration):
        folder = os.path.join(config_path, "algos")
        files = [os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".yaml")]
        return files + ([algorithm_configuration] if algorithm_configuration else [])
""",
}


def write(files, folder):
    for name, text in files.items():
        path = Path(folder) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
