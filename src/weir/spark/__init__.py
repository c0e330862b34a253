"""Topics as Spark tables and streams, through PySpark (the extra `spark`).

`weir.spark.session()` gives a Spark session with the right settings. In any session `format("weir")` reads topics:
it is found through the top-level module `pyspark_weir`, by the interpreter that Spark starts for that question. So
this import sees to it that a session that is built after it asks this interpreter, and tells one that is there.
"""

from weir.spark.spark_session import make_known as _make_known
from weir.spark.spark_session import session as session
from weir.spark.spark_session import settings as settings

_make_known()
