"""Checks the plan that Spark made of a stored query or condition, before it runs.

The process that runs it has more rights than the tenant that has stored it: the runner of the streams has a
superuser's token, and the files and the environment of its machine. `queries` refuses by the text what could use
them; but Spark parses the text itself, and not always as sqlglot does (comments, WATERMARK). So two results of
Spark are checked, too: the parsed text, because Spark executes commands and looks at files while it analyzes a
text, and the analyzed plan.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from weir.model.errors import SqlError
from weir.spark.tables.query import UNSAFE_FUNCTIONS

#: Nodes of plans and expressions, by their Java classes, as Spark writes a plan as JSON. Text in it has escaped
#: quotes.
_CLASS = re.compile(r'"class":"[\w.$]*?(\w+)\$?"')
#: Of all relations these alone: topics as streams, rows of the query itself, and parts of it.
_RELATIONS = (
    *("StreamingRelationV2", "StreamingDataSourceV2Relation", "LocalRelation", "OneRowRelation"),
    *("CTERelationDef", "CTERelationRef"),
)
#: Commands, Java methods, and decoders whose options name files.
_FORBIDDEN = ("Script", "Reflect", "Xml", "Avro", "Protobuf")
#: Names that Spark computes while it analyzes a text.
_COMPUTED_NAME = "UnresolvedIdentifier"
#: Nodes that call a function by its name.
_CALLS = ("UnresolvedFunction", "UnresolvedTableValuedFunction", "UnresolvedGenerator")


def check_query_text(spark: SparkSession, text: str) -> None:
    """SqlError unless Spark, too, reads the text as a query of tables with names of one word, without calls that
    are refused. Spark parses the text and nothing else."""
    _check_parsed(spark._jsparkSession.sessionState().sqlParser().parseQuery(text))


def check_condition_text(spark: SparkSession, text: str) -> None:
    """The same of a condition."""
    _check_parsed(spark._jsparkSession.sessionState().sqlParser().parseExpression(text))


def _check_parsed(parsed: Any) -> None:
    for node in _nodes(json.loads(parsed.toJSON())):
        name = node["class"].rpartition(".")[2]
        if _COMPUTED_NAME in name:
            raise _unsafe("IDENTIFIER")
        if any(word in name for word in _FORBIDDEN):
            raise _unsafe(name)
        # Of names in parts, Spark writes a text: [a, b].
        if name == "UnresolvedRelation" and "," in node["multipartIdentifier"]:
            raise SqlError(
                f"a stream reads topics alone, and not {node['multipartIdentifier']}", hint="name topics"
            )
        called = re.findall(r"\w+", json.dumps([node.get("nameParts"), node.get("name")]))
        if name in _CALLS and not UNSAFE_FUNCTIONS.isdisjoint(word.lower() for word in called):
            raise _unsafe(f"{name} {called}")


def _nodes(found: Any) -> Iterator[dict[str, Any]]:
    """All nodes of plans and expressions in what Spark writes as JSON."""
    todo = [found]
    while todo:
        one = todo.pop()
        if isinstance(one, dict):
            if "class" in one:
                yield one
            todo += one.values()
        elif isinstance(one, list):
            todo += one


def check_stream(frame: DataFrame) -> None:
    """SqlError if the query of a stream would read other than topics, or run more than SQL."""
    for name in _classes(frame):
        if "Relation" in name and name not in _RELATIONS:
            raise SqlError(f"a stream reads topics alone, and this query has a {name}", hint="name topics")
    check_calls(frame)


def check_calls(frame: DataFrame) -> None:
    """SqlError if the query would run more than SQL."""
    for name in _classes(frame):
        if any(word in name for word in _FORBIDDEN):
            raise _unsafe(name)


def _classes(frame: DataFrame) -> list[str]:
    return sorted(set(_CLASS.findall(frame._jdf.queryExecution().analyzed().toJSON())))


def _unsafe(what: str) -> SqlError:
    return SqlError(f"{what} is not for streams and replays", hint="their process runs SQL, not other code")
