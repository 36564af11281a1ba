"""File formats, one file each.

- `target`        where a file goes: whole or not at all
- `csv_file`      comma-separated, for spreadsheets and the replay meter
- `json_file`     JSON without NaN
- `parquet_file`  Apache Parquet, with the extra `parquet`
- `prometheus`    text for node_exporter's textfile collector
- `codecarbon`    reads the `emissions.csv` of CodeCarbon
"""
