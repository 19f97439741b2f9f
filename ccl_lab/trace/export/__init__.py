"""Writers of traces, one format a file: Arrow and Parquet, Chrome JSON, Perfetto, Kineto for HTA, Chakra, flight recorder."""
