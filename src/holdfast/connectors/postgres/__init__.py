"""PostgreSQL tables as a sink, and what `postgres_cdc` and the reference tables share with it."""
