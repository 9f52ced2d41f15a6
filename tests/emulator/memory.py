"""Guest memory, its page tables, and a program's image and first stack in it."""

import ctypes
import errno
import mmap
import os
import struct

from tiles import PAGE_FAULT, Fault

PAGE = 4096
RAM = 768 << 20
STACK = 8 << 20
# Where the program's own mappings begin; what is below belongs to the ELF segments and the heap.
MMAP_BASE = 64 << 20
# Page tables and the CPU's other tables live above what the program may use.
KERNEL = RAM - (4 << 20)

# Bits of a page table entry.
PRESENT, WRITE, USER = 1, 2, 4


class BadProgram(Exception):
    """The file can't be run here; the message says why."""


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
        # What follows is the machine's, to put the CPU's other tables in.
        self.kernel_pages = tables + pages * 8
        rights = PRESENT | WRITE | USER
        self.put(self.pml4, struct.pack("<Q", pdpt | rights))
        self.put(pdpt, struct.pack("<Q", directories | rights))
        for table in range(pages // 512):
            self.put(directories + table * 8, struct.pack("<Q", tables + table * PAGE | rights))

    def put(self, address, data):
        self.bytes[address : address + len(data)] = data

    def get(self, address, length):
        if not 0 < address <= address + length <= KERNEL:
            raise OSError(errno.EFAULT, "bad address")
        return self.bytes[address : address + length]

    def check(self, address, length, flags):
        """As the CPU would check an access of its own: raises `Fault` where a page is missing."""
        for page in range(address // PAGE, (address + length - 1) // PAGE + 1):
            if not 0 <= page < RAM // PAGE or self.entry(page) & flags != flags:
                raise Fault(PAGE_FAULT, max(address, page * PAGE))

    def entry(self, page):
        return struct.unpack_from("<Q", self.bytes, self.entries + page * 8)[0]

    def checked_get(self, address, length):
        self.check(address, length, PRESENT | USER)
        return self.bytes[address : address + length]

    def checked_put(self, address, data):
        self.check(address, len(data), PRESENT | USER | WRITE)
        self.put(address, data)

    def protect(self, address, length, flags):
        first, count = address // PAGE, -(-length // PAGE)
        entries = [((first + page) * PAGE | flags) if flags else 0 for page in range(count)]
        self.put(self.entries + first * 8, struct.pack(f"<{count}Q", *entries))
        self.taken[first : first + count] = b"\1" * count
        self.flush_tlb()

    def map(self, length, flags, at=None):
        """Zeroed pages; their address, or None where there is no room."""
        count = -(-length // PAGE)
        first = (
            at // PAGE if at else self.taken.find(bytes(count), MMAP_BASE // PAGE, KERNEL // PAGE)
        )
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
            raise BadProgram(
                f"{path} is no static x86-64 executable at a fixed address (crt-static, relocation-model=static)"
            )
        self.entry, headers = struct.unpack_from("<QQ", image, 24)
        size, count = struct.unpack_from("<HH", image, 54)
        self.end, program_headers = 0, 0
        for index in range(count):
            kind, flags, offset, start, _, in_file, in_memory, _ = struct.unpack_from(
                "<IIQQQQQQ", image, headers + index * size
            )
            if kind == 3:
                raise BadProgram(f"{path} wants a program interpreter; build it with crt-static")
            if kind != 1 or in_memory == 0:
                continue
            first, last = start // PAGE * PAGE, -(-(start + in_memory) // PAGE) * PAGE
            if last > MMAP_BASE:
                raise BadProgram(f"{path} is loaded above {MMAP_BASE:#x}; raise MMAP_BASE")
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

        settings = [
            f"{k}={v}" for k, v in os.environ.items() if k.startswith(("OP_DBUS_", "RUST_"))
        ]
        random = push(bytes(range(16)))
        words = [push(text.encode() + b"\0") for text in arguments]
        settings = [push(text.encode() + b"\0") for text in settings]
        # AT_PHDR, AT_PHENT, AT_PHNUM, AT_PAGESZ, AT_ENTRY, AT_CLKTCK, AT_RANDOM, AT_EXECFN,
        # AT_MINSIGSTKSZ (tiles need room), AT_UID and its three companions, AT_SECURE, AT_NULL.
        auxiliary = [
            3,
            headers[0],
            4,
            headers[1],
            5,
            headers[2],
            6,
            PAGE,
            9,
            self.entry,
            17,
            100,
            25,
            random,
        ]
        auxiliary += [31, words[0], 51, 16384, 11, 0, 12, 0, 13, 0, 14, 0, 23, 0, 0, 0]
        table = [len(words), *words, 0, *settings, 0, *auxiliary]
        cursor = (cursor - 8 * len(table)) & ~15
        memory.put(cursor, struct.pack(f"<{len(table)}Q", *table))
        return cursor
