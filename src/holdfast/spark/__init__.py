"""The adapter to Spark: session, query, working directory, facts from the plan."""
