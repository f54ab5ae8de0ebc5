"""The protocol: fencing, recovery, retention. No pyspark."""
