"""The system calls that a static single-threaded program makes, answered without a kernel."""

import errno
import mmap
import os
import struct
import sys
import time

from memory import MMAP_BASE, PAGE, PRESENT, STACK, USER, WRITE

PROT_WRITE = 2


class Calls:
    """The system calls, by number: each takes the six arguments and returns what goes into RAX."""

    def __init__(self, memory, program, machine):
        self.memory, self.machine = memory, machine
        self.heap_start = self.heap = program.end
        self.unknown = set()
        self.table = {
            0: lambda *_: 0,  # read: end of file
            1: self.write,
            5: self.fstat,
            7: lambda *_: 0,  # poll: all of 0, 1, 2 are open
            9: self.mmap,
            10: self.mprotect,
            11: self.munmap,
            12: self.brk,
            13: lambda *_: 0,  # rt_sigaction: an exception ends the run anyway
            14: lambda *_: 0,  # rt_sigprocmask
            16: lambda *_: -errno.ENOTTY,  # ioctl
            20: self.writev,
            24: lambda *_: 0,  # sched_yield
            25: lambda *_: -errno.ENOMEM,  # mremap: the allocator copies instead
            28: lambda *_: 0,  # madvise
            39: lambda *_: 1,  # getpid
            60: self.exit,
            79: lambda *_: -errno.ENOENT,  # getcwd
            89: lambda *_: -errno.ENOENT,  # readlink
            131: lambda *_: 0,  # sigaltstack
            158: self.arch_prctl,
            186: lambda *_: 1,  # gettid
            200: self.kill,
            202: lambda *_: 0,  # futex: nobody waits in a program of one thread
            204: self.sched_getaffinity,
            218: lambda *_: 1,  # set_tid_address
            228: self.clock_gettime,
            231: self.exit,
            234: lambda _, thread, number, *__: self.kill(thread, number),  # tgkill
            257: lambda *_: -errno.ENOENT,  # openat
            262: self.fstat,
            267: lambda *_: -errno.ENOENT,  # readlinkat
            273: lambda *_: 0,  # set_robust_list
            302: self.prlimit,
            318: self.getrandom,
            332: lambda *_: -errno.ENOSYS,  # statx
            334: lambda *_: -errno.ENOSYS,  # rseq: optional
        }

    def answer(self, number, arguments):
        call = self.table.get(number)
        if call is None:
            if number not in self.unknown:
                self.unknown.add(number)
                print(
                    f"bochs.py: system call {number} is not emulated: ENOSYS",
                    file=sys.stderr,
                    flush=True,
                )
            return -errno.ENOSYS
        try:
            return call(*arguments)
        except OSError as error:
            return -error.errno

    def write(self, file, address, length, *_):
        if file not in (1, 2):
            return -errno.EBADF
        return os.write(file, self.memory.get(address, length)) if length else 0

    def writev(self, file, vectors, count, *_):
        pairs = struct.unpack(f"<{2 * count}Q", self.memory.get(vectors, 16 * count))
        return sum(
            self.write(file, start, length) for start, length in zip(pairs[::2], pairs[1::2])
        )

    def fstat(self, *_):
        return -errno.EBADF

    def mmap(self, address, length, protection, flags, *_):
        if not flags & mmap.MAP_ANONYMOUS or length == 0:
            return -errno.ENODEV
        fixed = address if flags & 0x100010 else None  # MAP_FIXED, MAP_FIXED_NOREPLACE
        return self.memory.map(length, self.rights(protection), at=fixed) or -errno.ENOMEM

    def mprotect(self, address, length, protection, *_):
        self.memory.protect(address, length, self.rights(protection))
        return 0

    def munmap(self, address, length, *_):
        self.memory.unmap(address, length)
        return 0

    @staticmethod
    def rights(protection):
        if protection == 0:
            return 0
        return PRESENT | USER | (WRITE if protection & PROT_WRITE else 0)

    def brk(self, end, *_):
        if self.heap_start <= end <= MMAP_BASE:
            first, last = -(-self.heap // PAGE) * PAGE, -(-end // PAGE) * PAGE
            if last > first:
                self.memory.map(last - first, PRESENT | WRITE | USER, at=first)
            self.heap = max(end, self.heap)
        return self.heap

    def arch_prctl(self, code, address, *_):
        if code == 0x1002:  # ARCH_SET_FS
            self.machine.set_fs(address)
            return 0
        # ARCH_REQ_XCOMP_PERM for tile data: nothing to ask for here, XCR0 has it on.
        return 0 if (code, address) == (0x1023, 18) else -errno.EINVAL

    def sched_getaffinity(self, _, length, address, *__):
        self.memory.put(address, struct.pack("<Q", 1))
        return 8

    def clock_gettime(self, clock, address, *_):
        now = time.clock_gettime_ns(clock)
        self.memory.put(address, struct.pack("<qq", *divmod(now, 10**9)))
        return 0

    def prlimit(self, _, resource, new, old, *__):
        if old:
            self.memory.put(old, struct.pack("<QQ", STACK, STACK))
        return 0

    def getrandom(self, address, length, *_):
        self.memory.put(address, os.urandom(length))
        return length

    def kill(self, _, number, *__):
        return self.exit(128 + number)

    def exit(self, status, *_):
        self.machine.finish(status & 0xFF)
        return 0
