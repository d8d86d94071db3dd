"""The verification of a migrated store on Spark."""
