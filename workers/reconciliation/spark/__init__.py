"""What the job needs of Spark: Java, a session, files, fast queries over few rows, and expressions as SQL."""
