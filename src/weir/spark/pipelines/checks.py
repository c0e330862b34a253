"""Whether columns go with a schema of the registry, without a loss on the way."""

from pyspark.sql import types as t

from weir.spark.sql.output import is_about

#: Each may become any that stands after it.
_NUMBERS = (t.ByteType, t.ShortType, t.IntegerType, t.LongType, t.FloatType, t.DoubleType)


def unfit(given: t.StructType, wanted: t.DataType) -> str:
    """The first column whose type is another than the schema's, as a sentence; empty if there is none."""
    if not isinstance(wanted, t.StructType):
        return ""
    types = {one.name.lower(): one for one in wanted}
    for one in given:
        other = types.get(one.name.lower())
        if other is None or is_about(one.name) or fits(one.dataType, other.dataType):
            continue
        return f"column {one.name} is {one.dataType.simpleString()}, and must be {other.dataType.simpleString()}"
    return ""


def fits(given: t.DataType, wanted: t.DataType) -> bool:  # noqa: PLR0911 - a table of cases
    """Whether every value of the one type is one of the other."""
    match given, wanted:
        case t.StructType(), t.StructType():
            types = {one.name.lower(): one.dataType for one in wanted}
            return all(one.name.lower() in types and fits(one.dataType, types[one.name.lower()]) for one in given)
        case t.ArrayType(), t.ArrayType():
            return fits(given.elementType, wanted.elementType)
        case t.MapType(), t.MapType():
            return fits(given.keyType, wanted.keyType) and fits(given.valueType, wanted.valueType)
        case t.DecimalType(), t.DecimalType():
            whole = wanted.precision - wanted.scale
            return given.scale <= wanted.scale and given.precision - given.scale <= whole
        case t.DecimalType(), t.DoubleType():
            return True
        case t.DateType(), t.TimestampType() | t.TimestampNTZType():
            return True
        case t.NullType(), _:
            return True
    order = [at for kind in (given, wanted) for at, one in enumerate(_NUMBERS) if type(kind) is one]
    if len(order) == 2:
        return order[0] <= order[1] and not (isinstance(given, t.LongType) and isinstance(wanted, t.FloatType))
    return type(given) is type(wanted)
