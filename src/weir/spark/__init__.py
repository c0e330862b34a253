"""Topics as Spark tables and streams, through PySpark (the extra `spark`).

`weir.spark.session()` gives a Spark session with the right settings. In any session `format("weir")` reads topics:
it is found through the top-level module `pyspark_weir`, without registration.
"""

from weir.spark.sessions import session as session
from weir.spark.sessions import settings as settings
