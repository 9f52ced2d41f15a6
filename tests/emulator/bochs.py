"""Runs a static x86-64 Linux program on an emulated CPU that has instructions this machine lacks.

    bochs.py [--model NAME] PROGRAM [ARGUMENT...]

The CPU is Bochs, linked as a library by the PyPI package `bochscpu-python`. There is no kernel under
it: these files load the ELF segments, build stack and page tables (`memory.py`), start the program
in user mode and answer the few system calls that a single-threaded static program makes
(`calls.py`). Standard output, standard error and the exit status are the program's own; an exception
of the CPU (an instruction that the model does not have, an access outside a buffer) ends the run
with 128 + signal.

Guest memory is one anonymous mapping, with guest virtual = guest physical = offset into it. So page
protection is real (a guard page made with mprotect faults), and a system call reads its buffers by
slicing. Nothing calls back into Python while the program computes: Bochs tells of SYSCALL as a "far
branch", and of exceptions through the CLFLUSH in their handlers.

This Bochs is compiled without the tile instructions. On the one model that has them they are done
in Python (`tiles.py`) when they raise an invalid-opcode exception, and CPUID is made to show them.
"""

import argparse
import ctypes
import os
import signal
import struct
import sys

from calls import Calls
from memory import KERNEL, PAGE, RAM, BadProgram, Memory, Program
from tiles import PAGE_FAULT, PROTECTION, REGISTERS, UNDEFINED, Fault, Tiles

# Index of each model in the emulator's own table; its name is checked after the start.
MODELS = {
    "corei7_haswell_4770": 24,
    "corei7_skylake_x": 26,
    "corei7_icelake_u": 28,
    "tigerlake": 29,
    "sapphire_rapids": 30,
    "arrow_lake": 31,
}
MODEL_WITH_TILES = "sapphire_rapids"
FAR_BRANCH_SYSCALL = 17
# Size of the emulator's table of opcodes, and two descriptions of a memory operand in it.
OPCODES_BYTES, ELEMENT, WHOLE_VECTOR = 0x15150, 0x44, 0x04
# Vectors that come with an error code on the stack.
WITH_CODE = (8, 10, 11, 12, 13, 14, 17)
EXCEPTIONS = {
    0: (signal.SIGFPE, "division error"),
    3: (signal.SIGTRAP, "breakpoint"),
    UNDEFINED: (
        signal.SIGILL,
        "an instruction that this CPU does not have, or tiles that don't fit",
    ),
    7: (signal.SIGILL, "vector state that is switched off"),
    PROTECTION: (
        signal.SIGSEGV,
        "general protection: a misaligned or impossible address, or tile configuration",
    ),
    PAGE_FAULT: (signal.SIGSEGV, "page fault"),
    19: (signal.SIGFPE, "floating point exception"),
}
U16, U32, U64, POINTER = ctypes.c_uint16, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_void_p
FAR_BRANCH = ctypes.CFUNCTYPE(None, POINTER, U32, U32, U16, U64, U16, U64)
CLFLUSH = ctypes.CFUNCTYPE(None, POINTER, U32, U64, U64)
CPUID = ctypes.CFUNCTYPE(None, POINTER, U32, U32, ctypes.POINTER(U32))


def fail(message):
    print(f"bochs.py: {message}", file=sys.stderr, flush=True)
    os._exit(70)


class Hooks(ctypes.Structure):
    """`bochscpu_hooks_t`: a null pointer is a hook that costs next to nothing."""

    NAMES = (
        "reset hlt mwait cnear_branch_taken cnear_branch_not_taken ucnear_branch far_branch opcode interrupt "
        "exception hw_interrupt tlb_cntrl cache_cntrl prefetch_hint clflush before_execution after_execution "
        "repeat_iteration inp inp2 outp lin_access phy_access wrmsr vmexit"
    ).split()
    _fields_ = [("ctx", POINTER)] + [(name, POINTER) for name in NAMES]


class Emulator:
    """The library: its C interface, a few of its C++ functions, and its Python module."""

    def __init__(self, model):
        # The wheel names two C library symbols of glibc 2.38 that it never calls: bind lazily.
        sys.setdlopenflags(os.RTLD_LAZY)
        import bochscpu

        self.module = bochscpu
        self.library = ctypes.CDLL(bochscpu._bochscpu.__file__, mode=os.RTLD_LAZY)
        self.mend_dot_product()
        self.choose(model)
        self.session = bochscpu.Session()
        self.bx_cpu = ctypes.addressof(ctypes.c_char.in_dll(self.library, "bx_cpu"))
        # BX_CPU_C::cpuid, and in its virtual table get_name() as the third entry.
        self.cpuid = U64.from_address(self.bx_cpu + 0x38).value
        self.table = U64.from_address(self.cpuid).value
        name = ctypes.CFUNCTYPE(ctypes.c_char_p, POINTER)(U64.from_address(self.table + 16).value)(
            self.cpuid
        )
        if name.decode() != model:
            fail(
                f"this bochscpu-python has {name.decode()} where {model} is expected; version 0.4.0 is right"
            )

    def function(self, name, result, *arguments):
        function = self.library[name]
        function.restype, function.argtypes = result, arguments
        return function

    def choose(self, model):
        """The package has no setting for the model, but Bochs itself has, with these accessors."""
        get = self.function(
            "_ZN13bx_real_sim_c14get_param_enumEPKcP10bx_param_c",
            POINTER,
            POINTER,
            ctypes.c_char_p,
            POINTER,
        )
        setting = get(POINTER.in_dll(self.library, "SIM"), b"cpu.model", None)
        self.function("_ZN14bx_param_num_c9set_rangeEmm", None, POINTER, U64, U64)(
            setting, 0, max(MODELS.values())
        )
        self.function("_ZN15bx_param_enum_c3setEl", None, POINTER, U64)(setting, MODELS[model])

    def mend_dot_product(self):
        """VDPBF16PS counts its 8-bit displacement in elements; the manual says in whole vectors.

        Each entry of the table is the instruction's function with a memory operand, the one with
        registers, and a byte for each operand; that of the third operand is wrong.
        """
        name = "_ZN8BX_CPU_C25VDPBF16PS_MASK_VpsHdqWdqREP15bxInstruction_c"
        function = ctypes.cast(self.library[name], POINTER).value
        start = ctypes.addressof(ctypes.c_char.in_dll(self.library, "BxOpcodesTable"))
        words = (U64 * (OPCODES_BYTES // 8)).from_address(start)
        operands = (ctypes.c_uint8 * 4).from_address(start + (list(words).index(function) + 1) * 8)
        if operands[2] not in (ELEMENT, WHOLE_VECTOR):
            fail("this bochscpu-python has another table of opcodes; version 0.4.0 is right")
        operands[2] = WHOLE_VECTOR

    def show_tiles(self):
        """Puts our own function in front of the model's CPUID."""
        symbol = ctypes.cast(
            self.library["_ZNK17sapphire_rapids_t14get_cpuid_leafEjjP16cpuid_function_t"], POINTER
        ).value
        original = CPUID(symbol)

        def answer(this, leaf, sub_leaf, registers):
            original(this, leaf, sub_leaf, registers)
            if (leaf, sub_leaf) == (7, 0):
                registers[3] |= 1 << 22 | 1 << 24 | 1 << 25  # AMX-BF16, AMX-TILE, AMX-INT8
            elif (leaf, sub_leaf) == (0x1D, 0):
                registers[0] = 1  # palettes
            elif (leaf, sub_leaf) == (0x1D, 1):
                registers[0], registers[1], registers[2] = 1024 << 16 | 8192, 8 << 16 | 64, 16
            elif (leaf, sub_leaf) == (0x1E, 0):
                registers[1] = 64 << 8 | 16

        self.answer = CPUID(answer)
        entries = (U64 * 32).from_address(self.table)
        self.own_table = (U64 * 32)(*entries)
        self.own_table[list(entries).index(symbol)] = ctypes.cast(self.answer, POINTER).value
        U64.from_address(self.cpuid).value = ctypes.addressof(self.own_table)

    def run(self, **hooks):
        handle = self.function("bochscpu_cpu_from", POINTER, U32)(0)
        table = Hooks(**{name: ctypes.cast(hook, POINTER) for name, hook in hooks.items()})
        chain = (POINTER * 2)(ctypes.addressof(table), None)
        self.function("bochscpu_cpu_run", None, POINTER, POINTER)(handle, ctypes.byref(chain))


class Machine:
    """The CPU: long mode, one address space, user mode, all vector state on."""

    def __init__(self, model, path, arguments):
        self.memory = Memory()
        program = Program(self.memory, path, arguments)
        self.calls = Calls(self.memory, program, self)
        self.emulator = Emulator(model)
        self.cpu, self.segment = self.emulator.session.cpu, self.emulator.module.Segment
        self.emulator.session.missing_page_handler = self.missing_page
        insert = self.emulator.function("bochscpu_mem_page_insert", None, U64, U64)
        for page in range(0, RAM, PAGE):
            insert(page, self.memory.address + page)
        flush = self.emulator.function("_ZN8BX_CPU_C9TLB_flushEv", None, POINTER)
        self.tiles = None
        if model == MODEL_WITH_TILES:
            self.emulator.show_tiles()
            self.tiles = Tiles(self.memory.checked_get, self.memory.checked_put, self.register)
        self.make_tables()
        self.cpu.set_state(self.first_state(self.emulator.module.State(), program))
        self.memory.flush_tlb = lambda: flush(self.emulator.bx_cpu)

    def make_tables(self):
        """Two pages behind the page tables: the handlers' stack, then what the CPU looks up."""
        self.stack = self.memory.kernel_pages + PAGE
        self.gdt = self.stack
        self.tss, self.idt, handlers, enter = (
            self.gdt + offset for offset in (0x40, 0x100, 0x400, 0x800)
        )
        self.memory.protect(self.memory.kernel_pages, 2 * PAGE, 3)
        # Code and data of the kernel, data and code of the program; SYSRET expects this order.
        descriptors = (0, 0xAF9B000000FFFF, 0xCF93000000FFFF, 0xCFF3000000FFFF, 0xAFFB000000FFFF)
        self.memory.put(self.gdt, struct.pack("<5Q", *descriptors))
        self.memory.put(self.tss + 4, struct.pack("<Q", self.stack))
        self.memory.put(enter, b"\x48\x0f\x07")  # sysretq
        self.lstar = enter
        for vector in range(32):
            handler = handlers + vector * 16
            # push 0 where the CPU pushes no code; push vector; clflush [rsp]; add rsp, 16; iretq
            code = b"" if vector in WITH_CODE else b"\x6a\x00"
            code += bytes((0x6A, vector)) + b"\x0f\xae\x3c\x24\x48\x83\xc4\x10\x48\xcf"
            self.memory.put(handler, code)
            gate = struct.pack(
                "<HHBBHII", handler & 0xFFFF, 8, 0, 0xEE, handler >> 16 & 0xFFFF, handler >> 32, 0
            )
            self.memory.put(self.idt + vector * 16, gate)

    def make_segment(self, selector, attributes, base=0, limit=0xFFFFFFFF):
        segment = self.segment()
        segment.present, segment.selector, segment.attr = True, selector, attributes
        segment.base, segment.limit = base, limit
        return segment

    def set_fs(self, base):
        self.cpu.fs = self.make_segment(0, 0xC0F3, base)

    def first_state(self, state, program):
        state.cr0 = 0x80010033  # paging, write protection, native x87 errors, protected mode
        state.cr3 = self.memory.pml4
        state.cr4 = 0x50620  # PAE, OSFXSR, OSXMMEXCPT, FSGSBASE, OSXSAVE
        state.efer = 0xD01  # SYSCALL, long mode, no-execute
        state.xcr0 = (
            0x600E7 if self.tiles else 0xE7
        )  # x87, SSE, AVX, three parts of AVX-512, two of AMX
        state.cs = self.make_segment(0x23, 0xA0FB)
        for name in ("ss", "ds", "es", "fs", "gs"):
            setattr(state, name, self.make_segment(0x1B, 0xC0F3))
        state.tr = self.make_segment(0x28, 0x8B, self.tss, 0x67)
        for name, base, limit in (("gdtr", self.gdt, 0x27), ("idtr", self.idt, 0x1FF)):
            table = self.emulator.module.GlobalSegment()
            table.base, table.limit = base, limit
            setattr(state, name, table)
        state.star = 0x13 << 48 | 0x08 << 32
        state.lstar = self.lstar
        state.rflags, state.mxcsr, state.mxcsr_mask = 0x202, 0x1F80, 0xFFFF
        state.fpcw, state.fptw = 0x37F, 0xFFFF
        state.rip, state.rsp = program.entry, program.stack
        return state

    def run(self):
        self.emulator.run(far_branch=FAR_BRANCH(self.far_branch), clflush=CLFLUSH(self.clflush))
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

    def clflush(self, _, __, address, ___):
        """An exception's handler has pushed its frame: vector, code, then what IRETQ takes back."""
        if not self.memory.kernel_pages <= address < self.stack:
            return
        try:
            vector, code, self.place, _, flags, self.user_stack = struct.unpack(
                "<6Q", self.memory.bytes[address : address + 48]
            )
            if vector == UNDEFINED and self.tiles and (length := self.tile_instruction()):
                self.memory.put(address + 16, struct.pack("<Q", self.place + length))
                return
            self.report(vector, code, self.cpu.cr2)
        except Fault as fault:
            self.report(fault.vector, 0, fault.address)
        except BaseException as error:
            fail(f"{type(error).__name__}: {error}")

    def tile_instruction(self):
        return self.tiles.execute(self.memory.bytes[self.place : self.place + 16])

    def register(self, number):
        if number == 16:
            return self.place
        return (
            self.user_stack if REGISTERS[number] == "rsp" else getattr(self.cpu, REGISTERS[number])
        )

    def report(self, vector, code, address):
        number, words = EXCEPTIONS.get(vector, (signal.SIGSEGV, "exception"))
        near = f"at address {address:#x}, " if vector == PAGE_FAULT else ""
        code_bytes = (
            self.memory.bytes[self.place : self.place + 16].hex(" ") if self.place < KERNEL else "?"
        )
        print(
            f"bochs.py: {words} ({number.name}; vector {vector}, code {code:#x}), "
            f"{near}instruction at {self.place:#x}: {code_bytes}",
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
    try:
        Machine(options.model, options.program, options.arguments).run()
    except (BadProgram, OSError, ImportError) as error:
        fail(error)


if __name__ == "__main__":
    main()
