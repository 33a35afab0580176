"""A table of vectors with an ivfpq index, as the adapters of all three benchmarks use it.

Needs psycopg 3 and numpy. Vectors travel in the binary format of the type: int16 dimensions, int16 zero,
then float32, all big-endian. Whole arrays are packed at once, for COPY as well as for its results.
"""

import threading

import numpy as np
import psycopg
from psycopg import sql
from psycopg.adapt import Dumper
from psycopg.types import TypeInfo

# Operator and operator class, by the names that the benchmarks have.
METRICS = {
    "euclidean": ("<->", "vector_l2_ops"),
    "l2": ("<->", "vector_l2_ops"),
    "angular": ("<=>", "vector_cosine_ops"),
    "cosine": ("<=>", "vector_cosine_ops"),
    "inner_product": ("<#>", "vector_ip_ops"),
    "ip": ("<#>", "vector_ip_ops"),
}

_COPY_HEAD = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_COPY_TAIL = b"\xff\xff"
_ROWS_A_WRITE = 10000


class _VectorDumper(Dumper):
    format = psycopg.pq.Format.BINARY

    def dump(self, obj):
        values = np.ascontiguousarray(obj, dtype=">f4")
        return np.array([values.size, 0], dtype=">i2").tobytes() + values.tobytes()


def connect(**arguments):
    """A connection in autocommit mode to a database that gets the extension if it lacks it. Arguments are those
    of psycopg; libpq's environment (PGHOST and so on) fills in the rest."""
    connection = psycopg.connect(autocommit=True, **arguments)
    present = connection.execute("SELECT 1 FROM pg_extension WHERE extname = 'pgwarp'").fetchone()
    if present is None:
        connection.execute("CREATE EXTENSION pgwarp")
    vector = TypeInfo.fetch(connection, "vector")
    if vector is None:
        raise RuntimeError('type "vector" is in no schema of search_path')
    dumper = type("VectorDumper", (_VectorDumper,), {"oid": vector.oid})
    connection.adapters.register_dumper(np.ndarray, dumper)
    return connection


def _pack(ids, vectors, labels):
    """Rows of COPY BINARY: bigint, vector, and text where there are labels."""
    records = np.empty(
        len(ids),
        dtype=[
            ("fields", ">i2"),
            ("id_size", ">i4"),
            ("id", ">i8"),
            ("size", ">i4"),
            ("dims", ">i2"),
            ("zero", ">i2"),
            ("values", ">f4", (vectors.shape[1],)),
        ],
    )
    records["fields"] = 2 if labels is None else 3
    records["id_size"] = 8
    records["id"] = ids
    records["size"] = 4 + 4 * vectors.shape[1]
    records["dims"] = vectors.shape[1]
    records["zero"] = 0
    records["values"] = vectors
    if labels is None:
        return records.tobytes()
    parts = []
    for record, label in zip(records, labels):
        text = str(label).encode()
        parts += (record.tobytes(), len(text).to_bytes(4, "big"), text)
    return b"".join(parts)


# A row of knn_join in COPY BINARY: query_key, rank, key, distance, each behind its size.
_JOIN_RECORD = np.dtype(
    [
        ("fields", ">i2"),
        ("query_size", ">i4"),
        ("query", ">i8"),
        ("rank_size", ">i4"),
        ("rank", ">i4"),
        ("key_size", ">i4"),
        ("key", ">i8"),
        ("distance_size", ">i4"),
        ("distance", ">f4"),
    ]
)


class VectorTable:
    """Rows have an id, a vector called embedding, and a label if the table was created with labels."""

    def __init__(self, connection, name, dims, metric):
        if metric not in METRICS:
            raise ValueError(f"pgwarp has no index for metric {metric!r}: it has {', '.join(METRICS)}")
        self.connection = connection
        self.dims = dims
        self.index_name = f"{name}_embedding_idx"
        self._operator, self._operator_class = METRICS[metric]
        self._table = sql.Identifier(name)
        self._index = sql.Identifier(self.index_name)
        self._searches = {}
        self._copying = threading.Lock()

    def _run(self, text, **parts):
        parts = {"table": self._table, "index": self._index, **parts}
        return self.connection.execute(sql.SQL(text).format(**parts))

    def create(self, labels=False):
        """Makes the table anew."""
        self._run("DROP TABLE IF EXISTS {table}")
        self._run(
            "CREATE TABLE {table} (id bigint, embedding vector({dims}){label})",
            dims=sql.Literal(self.dims),
            label=sql.SQL(", label text" if labels else ""),
        )

    def _copy(self, table, ids, vectors, labels=None):
        vectors = np.asarray(vectors, dtype=np.float32)
        ids = np.asarray(ids, dtype=np.int64)
        columns = "id, embedding" if labels is None else "id, embedding, label"
        statement = sql.SQL("COPY {} (" + columns + ") FROM STDIN (FORMAT binary)").format(table)
        # A COPY is several messages, between which psycopg lets other threads have the connection.
        with self._copying, self.connection.cursor() as cursor, cursor.copy(statement) as copy:
            copy.write(_COPY_HEAD)
            for first in range(0, len(ids), _ROWS_A_WRITE):
                part = slice(first, first + _ROWS_A_WRITE)
                copy.write(_pack(ids[part], vectors[part], None if labels is None else labels[part]))
            copy.write(_COPY_TAIL)

    def load(self, vectors, ids=None, labels=None):
        """Appends rows. Without ids, rows are numbered from 0 on."""
        self._copy(self._table, range(len(vectors)) if ids is None else ids, vectors, labels)

    def build(self, attributes=(), options=None):
        """Creates the index, with columns for conditions behind the vector."""
        columns = [sql.SQL("embedding " + self._operator_class)] + [sql.Identifier(name) for name in attributes]
        values = [
            sql.SQL("{} = {}").format(sql.Identifier(name), sql.Literal(value))
            for name, value in (options or {}).items()
        ]
        self._run("DROP INDEX IF EXISTS {index}")
        self._run(
            "CREATE INDEX {index} ON {table} USING ivfpq ({columns}) {options}",
            columns=sql.SQL(", ").join(columns),
            options=sql.SQL("WITH ({})").format(sql.SQL(", ").join(values)) if values else sql.SQL(""),
        )
        # Statistics for the planner, and pages marked all-visible as those of a table in use are.
        self._run("VACUUM (ANALYZE) {table}")

    def exists(self):
        """Whether the table has its index, ready for use."""
        return (
            self.connection.execute(
                "SELECT 1 FROM pg_index WHERE indexrelid = to_regclass(quote_ident(%s)) AND indisvalid",
                (self.index_name,),
            ).fetchone()
            is not None
        )

    def index_bytes(self):
        return self.connection.execute(
            "SELECT pg_relation_size(quote_ident(%s)::regclass)", (self.index_name,)
        ).fetchone()[0]

    def set_target_recall(self, target):
        self.connection.execute("SELECT set_config('ivfpq.target_recall', %s, false)", (str(target),))

    def _search_statement(self, k, condition):
        # k is written out: the planner weighs plans by it.
        if (k, condition) not in self._searches:
            where = f"WHERE {condition}".replace("%", "%%") if condition else ""
            statement = sql.SQL("SELECT id FROM {} " + where + " ORDER BY embedding " + self._operator + " %s LIMIT {}")
            statement = statement.format(self._table, sql.Literal(int(k)))
            self._searches[k, condition] = statement.as_string(self.connection)
        return self._searches[k, condition]

    def search(self, query, k, condition=""):
        """The ids of the k nearest rows that pass the condition, an SQL expression; nearest first."""
        with self.connection.cursor(binary=True) as cursor:
            cursor.execute(self._search_statement(k, condition), (np.asarray(query),), prepare=True)
            return [row[0] for row in cursor.fetchall()]

    def search_batch(self, queries, k):
        """The k nearest rows of each query: ids and distances, (query)(rank). Where the table has fewer rows than
        k, the rest is -1 and infinity. The time that queries and answers travel is part of the work."""
        queries = np.asarray(queries)
        given = sql.Identifier("pg_temp", "pgwarp_queries")
        self._run(
            "CREATE TEMP TABLE IF NOT EXISTS pgwarp_queries (id bigint, embedding vector({dims}))",
            dims=sql.Literal(self.dims),
        )
        self._run("TRUNCATE {given}", given=given)
        self._copy(given, range(len(queries)), queries)
        statement = sql.SQL(
            "COPY (SELECT query_key, rank, key, distance FROM knn_join('pg_temp.pgwarp_queries', 'id', "
            "'embedding', quote_ident({})::regclass, 'id', {})) TO STDOUT (FORMAT binary)"
        ).format(sql.Literal(self.index_name), sql.Literal(int(k)))
        with self.connection.cursor() as cursor, cursor.copy(statement) as copy:
            answer = b"".join(copy)
        rows = np.frombuffer(answer, dtype=_JOIN_RECORD, offset=len(_COPY_HEAD), count=self._count(answer))
        ids = np.full((len(queries), k), -1, dtype=np.int64)
        distances = np.full((len(queries), k), np.inf, dtype=np.float32)
        ids[rows["query"], rows["rank"] - 1] = rows["key"]
        distances[rows["query"], rows["rank"] - 1] = rows["distance"]
        return ids, distances

    @staticmethod
    def _count(answer):
        size = len(answer) - len(_COPY_HEAD) - len(_COPY_TAIL)
        if size % _JOIN_RECORD.itemsize != 0 or not answer.startswith(_COPY_HEAD):
            raise RuntimeError("knn_join has other columns than this adapter knows")
        return size // _JOIN_RECORD.itemsize
