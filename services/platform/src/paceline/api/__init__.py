"""The HTTP API under /v1, its event stream and the console's files.

`ApiApp` (in `server`) runs inside an event loop and shares nothing with the other services but the
tables. One request is one transaction, committed before the answer leaves. It reads what others
have written and writes what people decide; everything it changes is in the audit log.
"""
