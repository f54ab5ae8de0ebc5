"""A few lines of Java, compiled in Spark's own process: every question through py4j takes a third of a millisecond.

Janino compiles them, which Spark brings for its own code (see docs/decisions/0013).
"""

import itertools
from typing import Any

from pyspark.sql import SparkSession

_numbers = itertools.count(1)


class Compiled:
    """Java that takes objects and returns one."""

    def __init__(self, evaluator: Any, gateway: Any, objects: Any) -> None:
        self._evaluator, self._gateway, self._objects = evaluator, gateway, objects

    def __call__(self, *values: Any) -> Any:
        """Run it."""
        arguments = self._gateway.new_array(self._objects, len(values))
        for place, value in enumerate(values):
            arguments[place] = value
        return self._evaluator.evaluate(arguments)


def compiled(spark: SparkSession, source: str, *names: str) -> Compiled:
    """Compile Java whose parameters, all of them objects, have these names."""
    jvm: Any = spark._jvm
    gateway: Any = spark.sparkContext._gateway
    evaluator = _evaluator(jvm)
    types = gateway.new_array(jvm.java.lang.Class, len(names))
    anything = jvm.java.lang.Class.forName("java.lang.Object")
    for place in range(len(names)):
        types[place] = anything
    evaluator.setReturnType(anything)
    evaluator.setParameters(_texts(jvm, gateway, names), types)
    evaluator.cook(source)
    return Compiled(evaluator, gateway, jvm.java.lang.Object)


def compiled_function(spark: SparkSession, source: str, first: str, second: str) -> Any:
    """Compile a `Function2` with these names for what it is called with: one request a call, for every epoch."""
    jvm: Any = spark._jvm
    function = jvm.java.lang.Class.forName("org.apache.spark.api.java.function.Function2")
    names = _texts(jvm, spark.sparkContext._gateway, (first, second))
    return _evaluator(jvm).createFastEvaluator(source, function, names)


def _evaluator(jvm: Any) -> Any:
    """Return a compiler. For py4j, classes of one name are one class, whose method it remembers: each has its own."""
    evaluator = jvm.org.codehaus.janino.ScriptEvaluator()
    evaluator.setClassName(f"holdfast.Compiled{next(_numbers)}")
    evaluator.setParentClassLoader(jvm.java.lang.Thread.currentThread().getContextClassLoader())
    return evaluator


def _texts(jvm: Any, gateway: Any, values: tuple[str, ...]) -> Any:
    found = gateway.new_array(jvm.java.lang.String, len(values))
    for place, value in enumerate(values):
        found[place] = value
    return found
