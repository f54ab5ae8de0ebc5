"""Kafka topics: `source` says from where Spark's connector reads, `sink` writes in transactions."""
