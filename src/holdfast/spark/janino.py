"""A few lines of Java, compiled by what Spark brings for its own code (see docs/decisions/0013)."""

from typing import Any

from pyspark.sql import SparkSession


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
    parameters = gateway.new_array(jvm.java.lang.String, len(names))
    types = gateway.new_array(jvm.java.lang.Class, len(names))
    anything = jvm.java.lang.Class.forName("java.lang.Object")
    for place, name in enumerate(names):
        parameters[place], types[place] = name, anything
    evaluator = jvm.org.codehaus.janino.ScriptEvaluator()
    evaluator.setParentClassLoader(jvm.java.lang.Thread.currentThread().getContextClassLoader())
    evaluator.setReturnType(anything)
    evaluator.setParameters(parameters, types)
    evaluator.cook(source)
    return Compiled(evaluator, gateway, jvm.java.lang.Object)
