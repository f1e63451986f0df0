"""What the job asks of Spark: Java, a session, files, few rows, and expressions as SQL."""
