"""Packages that only some connectors need, loaded on first use.

`holdfast.sources`, `sinks` and `tables` can be imported without any of them; using a connector whose package is
missing says which extra to install.
"""

import importlib
from typing import Any

from holdfast.errors import MissingExtra


class LazyModule:
    """Stands for a module until something is asked of it."""

    def __init__(self, name: str, user: str, extra: str) -> None:
        self._name, self._user, self._extra = name, user, extra

    def require(self) -> Any:
        """Return the module, or say what to install."""
        try:
            return importlib.import_module(self._name)
        except ImportError as error:
            raise MissingExtra(
                f"{self._user} needs the '{self._extra}' extra: pip install 'holdfast[{self._extra}]' ({error})"
            ) from error

    def __getattr__(self, attribute: str) -> Any:
        value = getattr(self.require(), attribute)
        setattr(self, attribute, value)
        return value


np = LazyModule("numpy", "the postgres_cdc source", "spark")
pa = LazyModule("pyarrow", "every connector", "spark")
pc = LazyModule("pyarrow.compute", "every connector", "spark")
pq = LazyModule("pyarrow.parquet", "every connector", "spark")
arrow_csv = LazyModule("pyarrow.csv", "the files sink", "spark")
arrow_ipc = LazyModule("pyarrow.ipc", "every connector", "spark")
arrow_dataset = LazyModule("pyarrow.dataset", "every connector", "spark")
deltalake = LazyModule("deltalake", "the delta connector", "delta")
delta_transaction = LazyModule("deltalake.transaction", "the delta connector", "delta")
delta_exceptions = LazyModule("deltalake.exceptions", "the delta connector", "delta")
spark_sql = LazyModule("pyspark.sql", "foreach_batch with Spark DataFrames", "spark")
adbc_sqlite = LazyModule("adbc_driver_sqlite.dbapi", "the sqlite connector", "sqlite")
pyspark = LazyModule("pyspark", "writing large epochs", "spark")
spark_functions = LazyModule("pyspark.sql.functions", "writing large epochs", "spark")
adbc_postgres_package = LazyModule("adbc_driver_postgresql", "the postgres connector", "postgres")
adbc_postgres = LazyModule("adbc_driver_postgresql.dbapi", "the postgres connector", "postgres")
confluent_kafka = LazyModule("confluent_kafka", "the kafka connector", "kafka")
confluent_admin = LazyModule("confluent_kafka.admin", "the kafka connector", "kafka")
pymysql = LazyModule("pymysql", "the mysql connector", "mysql-cdc")
pymysql_cursors = LazyModule("pymysql.cursors", "the mysql connector", "mysql-cdc")
psycopg = LazyModule("psycopg", "the postgres_cdc source", "postgres-cdc")
psycopg_pq = LazyModule("psycopg.pq", "the postgres_cdc source", "postgres-cdc")
