"""Everything that the job needs of Spark: Java, a session, files, few rows, and expressions as SQL."""
