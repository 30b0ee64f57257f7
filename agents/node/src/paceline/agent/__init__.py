"""The node agent: reads the probe pages of the training processes on one machine.

It accepts processes over a unix socket, samples their pages once per interval, reduces them to
rows and publishes frames, registry records and health events. It needs no root, treats the content
of pages and messages as hostile, and never blocks a training process.

Loss policy: frames are loss-tolerant, the newest win; what does not fit in memory waits in a
bounded ring on disk, and what does not fit there is dropped and counted. Registry records and
health events are kept until Kafka acknowledges them, within a bound (docs/adr/0010-agent-buffering.md).
"""
