"""Becomes another program, for which the kernel refuses memfd_create: a seccomp filter, as containers have.

refuse_memfd.py PROGRAM ARGUMENT...
"""

import ctypes
import errno
import os
import platform
import struct
import sys

PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, FILTER = 38, 22, 2
LOAD_NUMBER, EQUAL, RETURN = 0x20, 0x15, 0x06  # of the classic BPF; the call's number is at offset 0
ALLOW, REFUSE = 0x7FFF0000, 0x00050000 | errno.EPERM
MEMFD_CREATE = {"x86_64": 319, "aarch64": 279}[platform.machine()]

program = b"".join(
    struct.pack("<HBBI", *step)
    for step in (
        (LOAD_NUMBER, 0, 0, 0),
        (EQUAL, 0, 1, MEMFD_CREATE),
        (RETURN, 0, 0, REFUSE),
        (RETURN, 0, 0, ALLOW),
    )
)
held = ctypes.create_string_buffer(program, len(program))
header = ctypes.create_string_buffer(struct.pack("@HP", len(program) // 8, ctypes.addressof(held)))
prctl = ctypes.CDLL(None, use_errno=True).prctl
for arguments in ((PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (PR_SET_SECCOMP, FILTER, header, 0, 0)):
    if prctl(*arguments) != 0:
        sys.exit(f"seccomp is not to be had here: {os.strerror(ctypes.get_errno())}")
os.execv(sys.argv[1], sys.argv[1:])
