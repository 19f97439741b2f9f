"""Traces as Arrow IPC files and Parquet: exact, columnar, meta in the schema's metadata.

Is: the writers and the table form. Is not: the reader (importers/arrow.py).
Invariants: columns in the order and with the types of COLUMNS, no nulls; `.arrow` is not compressed, so
that it can be mapped and a reader cannot be made to inflate it; metadata keys are those of form.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ...errors import UnsupportedError
from ..columns import COLUMNS, TRACE_VERSION
from ..form import KEY_CRC, KEY_META, KEY_VERSION, checksum, encode_meta
from ..model import ENUMS

if TYPE_CHECKING:
    from ..model import Trace


def schema() -> pa.Schema:
    """The schema of version TRACE_VERSION, without metadata."""
    return pa.schema(
        [pa.field(name, pa.from_numpy_dtype(dtype), nullable=False) for name, dtype in COLUMNS.items()]
    )


def to_table(trace: Trace, crc: bool = False) -> pa.Table:
    """A pyarrow.Table of the columns (zero copy); `crc` adds the checksum that files carry."""
    meta = encode_meta(trace.meta)
    metadata = {KEY_VERSION: str(TRACE_VERSION), KEY_META: meta}
    if crc:
        metadata[KEY_CRC] = str(checksum(trace.columns, meta))
    arrays = [pa.array(trace.columns[name]) for name in COLUMNS]
    return pa.Table.from_arrays(arrays, schema=schema().with_metadata(metadata))


def write_arrow(trace: Trace, path: Path) -> None:
    """Arrow IPC file format, one record batch per 2**20 spans."""
    table = to_table(trace, crc=True)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=2**20)


def write_parquet(trace: Trace, path: Path) -> None:
    """Parquet with a checksum per page; snappy, whose expansion is bounded."""
    import pyarrow.parquet as pq

    table = to_table(trace, crc=True)
    pq.write_table(table, str(path), compression="snappy", write_page_checksum=True)


def to_pandas(trace: Trace) -> Any:
    """A pandas.DataFrame with enums as categories; `attrs` holds the meta. Raises UnsupportedError without
    pandas."""
    try:
        import pandas as pd
    except ImportError:
        raise UnsupportedError("pandas is not installed: `pip install pandas`, or use .to_arrow().") from None
    data = {}
    for name, values in trace.columns.items():
        enum = ENUMS.get(name)
        if enum is None or (len(values) and int(values.max()) >= len(enum)):
            data[name] = values
        else:
            data[name] = pd.Categorical.from_codes(values.astype("int16"), [member.name for member in enum])
    frame = pd.DataFrame(data)
    frame.attrs = dict(trace.meta)
    return frame
