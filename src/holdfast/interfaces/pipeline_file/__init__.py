"""Pipelines written as a YAML file: docs/pipeline_file.md has every key."""

from holdfast.interfaces.pipeline_file.reading import PipelineFile, read_pipeline_file

__all__ = ["PipelineFile", "read_pipeline_file"]
