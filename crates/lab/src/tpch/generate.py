"""Makes TPC-H's data with DuckDB's generator: python3 -c THIS FACTOR FOLDER. Exit code 3: a package is
missing."""

import sys
from pathlib import Path

try:
    import duckdb
    import duckdb_extension_tpch
except ImportError as e:
    print(e, file=sys.stderr)
    sys.exit(3)

factor, folder = float(sys.argv[1]), Path(sys.argv[2])
found = sorted(Path(duckdb_extension_tpch.__file__).parent.rglob("tpch.duckdb_extension"))
if not found:
    print("the package duckdb-extension-tpch holds no extension", file=sys.stderr)
    sys.exit(3)
# The extension in the package is not signed by DuckDB's makers, so it is loaded by its path.
db = duckdb.connect(config={"allow_unsigned_extensions": "true"})
db.execute(f"LOAD '{found[-1]}'")
db.execute(f"CALL dbgen(sf = {factor})")
for table in ["region", "nation", "supplier", "customer", "part", "partsupp", "orders", "lineitem"]:
    # No field of TPC-H contains a bar or a line end.
    path = str(folder / f"{table}.tbl").replace("'", "''")
    db.execute(f"COPY {table} TO '{path}' (DELIMITER '|', HEADER false, QUOTE '', ESCAPE '')")
