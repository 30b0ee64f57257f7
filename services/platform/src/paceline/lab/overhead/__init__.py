"""`paceline overhead JOB`: what more detail costs a live job, measured in alternating blocks."""
