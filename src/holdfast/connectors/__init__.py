"""One module or package per system that rows come from or go to; each names the guarantee it gives.

Connectors do not import each other. What several of them need has modules of its own: `ledger` (who may claim a
target, which token fits), `staging` (names of staged rows), `durable` (files that survive a power loss),
`parquet_files`, `row_formats` and `text_values` (rows as text, and back), `sql_sink`, `sql_ledger` and
`sql_statements` (a table and its ledger in a database), `arrow_types`, `keys`, `extras` (packages that are loaded on
first use).
"""
