"""Changes of MySQL and MariaDB tables: a first copy, then the binary log, read by `reader` in Spark's workers."""
