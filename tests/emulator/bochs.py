"""Runs a static x86-64 Linux program on an emulated CPU that has instructions this machine lacks.

    bochs.py [--model NAME] PROGRAM [ARGUMENT...]

The CPU is Bochs, linked as a library by the PyPI package `bochscpu-python`. There is no kernel under
it: this file loads the ELF segments, builds stack and page tables, starts the program in user mode
and answers the few system calls that a single-threaded static program makes. Standard output,
standard error and the exit status are the program's own; an exception of the CPU (an instruction
that the model does not have, an access outside a buffer) ends the run with 128 + signal.

Guest memory is one anonymous mapping, with guest virtual = guest physical = offset into it. So page
protection is real (a guard page made with mprotect faults), and a system call reads its buffers by
slicing. No instruction calls back into Python except SYSCALL and SYSRET: Bochs tells of these two as
"far branches", and the page that SYSCALL enters holds nothing but a SYSRET.
"""

import argparse
import ctypes
import errno
import mmap
import os
import signal
import struct
import sys
import time

PAGE = 4096
RAM = 768 << 20
STACK = 8 << 20
# Where the program's own mappings begin; what is below belongs to the ELF segments and the heap.
MMAP_BASE = 64 << 20
# Page tables and the SYSRET page live above what the program may use.
KERNEL = RAM - (4 << 20)

# Bits of a page table entry.
PRESENT, WRITE, USER = 1, 2, 4
PROT_WRITE = 2
# Index of each model in the emulator's own table; its name is checked after the start.
MODELS = {
    "corei7_haswell_4770": 24,
    "corei7_skylake_x": 26,
    "corei7_icelake_u": 28,
    "tigerlake": 29,
    "sapphire_rapids": 30,
    "arrow_lake": 31,
}
FAR_BRANCH_SYSCALL = 17
EXCEPTIONS = {
    0: (signal.SIGFPE, "division error"),
    3: (signal.SIGTRAP, "breakpoint"),
    6: (signal.SIGILL, "an instruction that this CPU does not have"),
    7: (signal.SIGILL, "vector or tile state that is switched off"),
    13: (signal.SIGSEGV, "general protection: misaligned or non-canonical address, or a bad tile configuration"),
    14: (signal.SIGSEGV, "page fault"),
    19: (signal.SIGFPE, "floating point exception"),
}


def fail(message):
    print(f"bochs.py: {message}", file=sys.stderr, flush=True)
    os._exit(70)


def load_emulator(model):
    """The library through ctypes, and the Python module beside it, with the CPU model chosen."""
    # The wheel names two C library symbols of glibc 2.38 that it never calls: bind lazily.
    sys.setdlopenflags(os.RTLD_LAZY)
    import bochscpu
    import bochscpu.cpu

    library = ctypes.CDLL(bochscpu._bochscpu.__file__, mode=os.RTLD_LAZY)
    # The package has no setting for the model. These are the setters of Bochs itself.
    get = library["_ZN13bx_real_sim_c14get_param_enumEPKcP10bx_param_c"]
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    set_range = library["_ZN14bx_param_num_c9set_rangeEmm"]
    set_range.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64]
    set_value = library["_ZN15bx_param_enum_c3setEl"]
    set_value.argtypes = [ctypes.c_void_p, ctypes.c_int64]
    parameter = get(ctypes.c_void_p.in_dll(library, "SIM"), b"cpu.model", None)
    set_range(parameter, 0, max(MODELS.values()))
    set_value(parameter, MODELS[model])
    return library, bochscpu


class Hooks(ctypes.Structure):
    """`bochscpu_hooks_t`: a null pointer is a hook that costs next to nothing."""

    NAMES = (
        "reset hlt mwait cnear_branch_taken cnear_branch_not_taken ucnear_branch far_branch opcode interrupt "
        "exception hw_interrupt tlb_cntrl cache_cntrl prefetch_hint clflush before_execution after_execution "
        "repeat_iteration inp inp2 outp lin_access phy_access wrmsr vmexit"
    ).split()
    _fields_ = [("ctx", ctypes.c_void_p)] + [(name, ctypes.c_void_p) for name in NAMES]


U16, U32, U64 = ctypes.c_uint16, ctypes.c_uint32, ctypes.c_uint64
FAR_BRANCH = ctypes.CFUNCTYPE(None, ctypes.c_void_p, U32, U32, U16, U64, U16, U64)
EXCEPTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p, U32, U32, U32)


class Memory:
    """Guest memory and its page tables."""

    def __init__(self):
        self.bytes = mmap.mmap(-1, RAM)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.bytes))
        self.flush_tlb = lambda: None
        pages = RAM // PAGE
        # One byte a page: 0 free, 1 taken (which is not the same as present).
        self.taken = bytearray(pages)
        self.pml4 = KERNEL
        pdpt, directories, tables = KERNEL + PAGE, KERNEL + 2 * PAGE, KERNEL + 3 * PAGE
        self.entries = tables
        self.syscall_page = tables + pages * 8
        rights = PRESENT | WRITE | USER
        self.put(self.pml4, struct.pack("<Q", pdpt | rights))
        self.put(pdpt, struct.pack("<Q", directories | rights))
        for table in range(pages // 512):
            self.put(directories + table * 8, struct.pack("<Q", tables + table * PAGE | rights))
        self.put(self.syscall_page, b"\x48\x0f\x07")  # sysretq
        self.protect(self.syscall_page, PAGE, PRESENT | USER)

    def put(self, address, data):
        self.bytes[address : address + len(data)] = data

    def get(self, address, length):
        if not 0 < address <= address + length <= KERNEL:
            raise OSError(errno.EFAULT, "bad address")
        return self.bytes[address : address + length]

    def string(self, address):
        return self.bytes[address : self.bytes.index(b"\0", address)].decode(errors="replace")

    def protect(self, address, length, flags):
        first, count = address // PAGE, -(-length // PAGE)
        entries = [((first + page) * PAGE | flags) if flags else 0 for page in range(count)]
        self.put(self.entries + first * 8, struct.pack(f"<{count}Q", *entries))
        self.taken[first : first + count] = b"\1" * count
        self.flush_tlb()

    def map(self, length, flags, at=None):
        """Zeroed pages; their address, or None where there is no room."""
        count = -(-length // PAGE)
        first = at // PAGE if at else self.taken.find(bytes(count), MMAP_BASE // PAGE, KERNEL // PAGE)
        if first < 0 or (first + count) * PAGE > KERNEL:
            return None
        self.protect(first * PAGE, count * PAGE, flags)
        self.put(first * PAGE, bytes(count * PAGE))
        return first * PAGE

    def unmap(self, address, length):
        self.protect(address, length, 0)
        count = -(-length // PAGE)
        self.taken[address // PAGE : address // PAGE + count] = bytes(count)


class Program:
    """A static executable in guest memory, with the stack that the kernel would have built."""

    def __init__(self, memory, path, arguments):
        with open(path, "rb") as file:
            image = file.read()
        if image[:5] != b"\x7fELF\x02" or struct.unpack_from("<HH", image, 16) != (2, 62):
            fail(f"{path} is no static x86-64 executable at a fixed address (crt-static, relocation-model=static)")
        self.entry, headers = struct.unpack_from("<QQ", image, 24)
        size, count = struct.unpack_from("<HH", image, 54)
        self.end, program_headers = 0, 0
        for index in range(count):
            kind, flags, offset, start, _, in_file, in_memory, _ = struct.unpack_from(
                "<IIQQQQQQ", image, headers + index * size
            )
            if kind == 3:
                fail(f"{path} wants a program interpreter; build it with crt-static")
            if kind != 1 or in_memory == 0:
                continue
            first, last = start // PAGE * PAGE, -(-(start + in_memory) // PAGE) * PAGE
            if last > MMAP_BASE:
                fail(f"{path} is loaded above {MMAP_BASE:#x}; raise MMAP_BASE")
            # Two segments may share a page, so a page is given the rights of the last of them.
            memory.protect(first, last - first, PRESENT | USER | (WRITE if flags & 2 else 0))
            memory.put(start, image[offset : offset + in_file])
            if offset <= headers < offset + in_file:
                program_headers = start + headers - offset
            self.end = max(self.end, last)
        self.stack = self.build_stack(memory, [path, *arguments], (program_headers, size, count))

    def build_stack(self, memory, arguments, headers):
        top = KERNEL - PAGE
        memory.map(STACK, PRESENT | WRITE | USER, at=top - STACK)
        cursor = top

        def push(data):
            nonlocal cursor
            cursor -= len(data)
            memory.put(cursor, data)
            return cursor

        settings = [f"{k}={v}" for k, v in os.environ.items() if k.startswith(("OP_DBUS_", "RUST_"))]
        random = push(bytes(range(16)))
        words = [push(text.encode() + b"\0") for text in arguments]
        settings = [push(text.encode() + b"\0") for text in settings]
        # AT_PHDR, AT_PHENT, AT_PHNUM, AT_PAGESZ, AT_ENTRY, AT_CLKTCK, AT_RANDOM, AT_EXECFN,
        # AT_MINSIGSTKSZ (tiles need room), AT_UID and its three companions, AT_SECURE, AT_NULL.
        auxiliary = [3, headers[0], 4, headers[1], 5, headers[2], 6, PAGE, 9, self.entry, 17, 100, 25, random]
        auxiliary += [31, words[0], 51, 16384, 11, 0, 12, 0, 13, 0, 14, 0, 23, 0, 0, 0]
        table = [len(words), *words, 0, *settings, 0, *auxiliary]
        cursor = (cursor - 8 * len(table)) & ~15
        memory.put(cursor, struct.pack(f"<{len(table)}Q", *table))
        return cursor


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
                print(f"bochs.py: system call {number} is not emulated: ENOSYS", file=sys.stderr, flush=True)
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
        return sum(self.write(file, start, length) for start, length in zip(pairs[::2], pairs[1::2]))

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


class Machine:
    """The CPU: long mode, one address space, user mode, all vector and tile state on."""

    def __init__(self, model, path, arguments):
        self.library, bochscpu = load_emulator(model)
        self.memory = Memory()
        program = Program(self.memory, path, arguments)
        self.calls = Calls(self.memory, program, self)
        insert = self.library["bochscpu_mem_page_insert"]
        insert.restype, insert.argtypes = None, [U64, U64]
        for page in range(0, RAM, PAGE):
            insert(page, self.memory.address + page)
        self.session = bochscpu.Session()
        self.session.missing_page_handler = self.missing_page
        self.cpu = self.session.cpu
        self.check_model(model)
        self.segment = bochscpu.Segment
        self.cpu.set_state(self.first_state(bochscpu.State(), program))
        flush, bx_cpu = self.library["_ZN8BX_CPU_C9TLB_flushEv"], self.bx_cpu()
        flush.restype, flush.argtypes = None, [ctypes.c_void_p]
        self.memory.flush_tlb = lambda: flush(bx_cpu)

    def bx_cpu(self):
        return ctypes.addressof(ctypes.c_char.in_dll(self.library, "bx_cpu"))

    def check_model(self, wanted):
        """The models' numbers are not part of any interface, so ask the CPU for its name."""
        # BX_CPU_C::cpuid, and the third entry of its virtual table, get_name().
        cpuid = U64.from_address(self.bx_cpu() + 0x38).value
        name = U64.from_address(U64.from_address(cpuid).value + 16).value
        name = ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.c_void_p)(name)(cpuid).decode()
        if name != wanted:
            fail(f"the emulator started a {name}, not a {wanted}: this version of bochscpu-python numbers otherwise")

    def make_segment(self, selector, attributes, base=0):
        segment = self.segment()
        segment.present, segment.selector, segment.attr = True, selector, attributes
        segment.base, segment.limit = base, 0xFFFFFFFF
        return segment

    def set_fs(self, base):
        self.cpu.fs = self.make_segment(0, 0xC0F3, base)

    def first_state(self, state, program):
        state.cr0 = 0x80010033  # paging, write protection, native x87 errors, protected mode
        state.cr3 = self.memory.pml4
        state.cr4 = 0x50620  # PAE, OSFXSR, OSXMMEXCPT, FSGSBASE, OSXSAVE
        state.efer = 0xD01  # SYSCALL, long mode, no-execute
        state.xcr0 = 0x600E7  # x87, SSE, AVX, the three parts of AVX-512, both parts of AMX
        state.cs = self.make_segment(0x23, 0xA0FB)
        for name in ("ss", "ds", "es", "fs", "gs"):
            setattr(state, name, self.make_segment(0x1B, 0xC0F3))
        state.star = 0x13 << 48 | 0x08 << 32
        state.lstar = self.memory.syscall_page
        state.rflags, state.mxcsr, state.mxcsr_mask = 0x202, 0x1F80, 0xFFFF
        state.fpcw, state.fptw = 0x37F, 0xFFFF
        state.rip, state.rsp = program.entry, program.stack
        return state

    def run(self):
        handle = self.library["bochscpu_cpu_from"]
        handle.restype, handle.argtypes = ctypes.c_void_p, [U32]
        run = self.library["bochscpu_cpu_run"]
        run.restype, run.argtypes = None, [ctypes.c_void_p, ctypes.c_void_p]
        # Kept in locals for the whole run: the library has only their addresses.
        far_branch, exception = FAR_BRANCH(self.far_branch), EXCEPTION(self.exception)
        hooks = Hooks(
            far_branch=ctypes.cast(far_branch, ctypes.c_void_p), exception=ctypes.cast(exception, ctypes.c_void_p)
        )
        chain = (ctypes.c_void_p * 2)(ctypes.addressof(hooks), None)
        run(handle(0), ctypes.byref(chain))
        fail("the emulator stopped before the program did")

    def far_branch(self, _, __, what, *___):
        if what != FAR_BRANCH_SYSCALL:
            return
        try:
            cpu = self.cpu
            arguments = (cpu.rdi, cpu.rsi, cpu.rdx, cpu.r10, cpu.r8, cpu.r9)
            cpu.rax = self.calls.answer(cpu.rax, arguments) & (2**64 - 1)
        except BaseException as error:
            # Into a callback from C nothing could be raised.
            fail(f"{type(error).__name__}: {error}")

    def exception(self, _, __, vector, code):
        number, words = EXCEPTIONS.get(vector, (signal.SIGSEGV, "exception"))
        place, near = self.cpu.rip, f"at address {self.cpu.cr2:#x}, " if vector == 14 else ""
        code_bytes = self.memory.bytes[place : place + 16].hex(" ") if place < RAM else "?"
        print(
            f"bochs.py: {words} ({number.name}; vector {vector}, code {code:#x}), "
            f"{near}instruction at {place:#x}: {code_bytes}",
            file=sys.stderr,
            flush=True,
        )
        self.finish(128 + number)

    def missing_page(self, address):
        fail(f"physical address {address:#x} is outside guest memory")

    def finish(self, status):
        # The run loop can't be unwound from a callback.
        os._exit(status)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", choices=MODELS, default="sapphire_rapids")
    parser.add_argument("program")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    Machine(options.model, options.program, options.arguments).run()


if __name__ == "__main__":
    main()
