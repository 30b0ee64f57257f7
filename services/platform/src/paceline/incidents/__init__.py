"""From verdicts to incidents.

`IncidentsApp` consumes `paceline.verdicts.v1` and `paceline.jobs.v1` and writes the tables;
`OutboxRelay` publishes what it wrote to `paceline.incidents.v1`. At least once everywhere: a
record that comes again changes nothing, because verdicts are known by episode and revision and
events by an id derived from them. While PostgreSQL or Kafka is away both wait; nothing is dropped.
A record that the database can never take goes to the dead letters.
"""
