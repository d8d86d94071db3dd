"""Spark only: the Pulsar data source and the queries. The sole importer of pyspark."""
