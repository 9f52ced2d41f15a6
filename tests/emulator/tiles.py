"""The tile instructions (AMX) of one CPU, by the pseudo code of their manual.

The Bochs inside `bochscpu-python` is compiled without them, so they raise an invalid-opcode
exception; `bochs.py` hands the instruction to this file and goes on behind it. Covered is what the
kernels use and its neighbours: configuration, loads and stores, the four products of 8-bit
integers, and the product of bfloat16, which rounds after each step like the hardware. What the
manual forbids (a product of tiles whose shapes don't fit, a tile that is not configured) is a
`Fault`, as on a real CPU.
"""

import ctypes
import struct
from operator import add, mul

ROWS, ROW_BYTES, TILES = 16, 64, 8
PALETTE_BYTES = 64
REGISTERS = "rax rcx rdx rbx rsp rbp rsi rdi r8 r9 r10 r11 r12 r13 r14 r15".split()
# Mandatory prefix, as VEX encodes it.
NONE, P66, PF3, PF2 = range(4)
# Opcode 0x5E by prefix: whether the left and the right bytes are signed.
INTEGER_PRODUCTS = {NONE: (False, False), P66: (False, True), PF3: (True, False), PF2: (True, True)}


class Fault(Exception):
    """An exception of the CPU: its vector, and the address where memory is missing."""

    def __init__(self, vector, address=0):
        super().__init__(f"exception {vector}")
        self.vector, self.address = vector, address


UNDEFINED, PROTECTION, PAGE_FAULT = 6, 13, 14


def rounded(layout, numbers):
    """Packs numbers as 32-bit floats: as for a CPU, what is too large for one is infinite."""
    numbers = list(numbers)
    try:
        return layout.pack(*numbers)
    except OverflowError:
        return layout.pack(*(ctypes.c_float(number).value for number in numbers))


class Instruction:
    """A VEX-encoded instruction of map 0F38, W0, 128 bits, decoded; None of it is executed."""

    def __init__(self, code, registers):
        if code[0] != 0xC4 or code[1] & 0x1F != 2 or code[2] & 0x84:
            raise Fault(UNDEFINED)
        not_extended = code[1] >> 5
        self.prefix, self.opcode, mode = code[2] & 3, code[3], code[4] >> 6
        self.second = ~(code[2] >> 3) & 15
        self.first, self.third = code[4] >> 3 & 7, code[4] & 7
        self.in_registers, self.length = mode == 3, 5
        self.address = self.stride = 0
        self.has_index = False
        if self.in_registers:
            return
        base = self.third | (0 if not_extended & 1 else 8)
        if self.third == 4:
            scale, index, base = code[5] >> 6, code[5] >> 3 & 7, code[5] & 7
            self.length, self.has_index = 6, True
            index |= 0 if not_extended & 2 else 8
            self.stride = 0 if index == 4 else signed(registers(index), 64) << scale
            no_base = base == 5 and mode == 0
            base |= 0 if not_extended & 1 else 8
            self.address = 0 if no_base else registers(base)
        elif base & 7 == 5 and mode == 0:
            # Relative to the instruction after this one; `registers(16)` is where this one begins.
            no_base, self.address = True, registers(16) + 9
        else:
            no_base, self.address = False, registers(base)
        size = {0: 4 if no_base else 0, 1: 1, 2: 4}[mode]
        displacement = int.from_bytes(code[self.length : self.length + size], "little", signed=True)
        self.address += displacement
        self.length += size


def signed(value, bits):
    return value - (1 << bits) if value >> (bits - 1) else value


class Tiles:
    """Configuration and content of the eight tiles.

    `read(address, length)` and `write(address, bytes)` reach the program's memory and raise `Fault`
    where it has none; `register(number)` reads a general register, 16 is the instruction pointer.
    """

    def __init__(self, read, write, register):
        self.read, self.write, self.register = read, write, register
        self.release()

    def release(self):
        self.configuration = bytes(PALETTE_BYTES)
        self.rows, self.row_bytes = [0] * TILES, [0] * TILES
        self.content = [[bytes(ROW_BYTES)] * ROWS for _ in range(TILES)]

    def execute(self, code):
        """Executes the instruction at the start of `code`; its length, or None if it is none of ours."""
        try:
            instruction = Instruction(code, self.register)
        except Fault:
            return None
        opcode, prefix = instruction.opcode, instruction.prefix
        if opcode == 0x49:
            self.configure(instruction, prefix)
        elif opcode == 0x4B and not instruction.in_registers and prefix != NONE:
            self.move(instruction, store=prefix == PF3)
        elif opcode == 0x5E and instruction.in_registers:
            self.multiply(
                instruction, lambda *tiles: self.integers(*tiles, *INTEGER_PRODUCTS[prefix])
            )
        elif opcode == 0x5C and instruction.in_registers and prefix == PF3:
            self.multiply(instruction, self.halves)
        else:
            return None
        return instruction.length

    def configure(self, instruction, prefix):
        if instruction.in_registers and prefix == PF2:
            self.content[self.existing(instruction.first)] = [bytes(ROW_BYTES)] * ROWS
        elif instruction.in_registers and prefix == NONE:
            self.release()
        elif not instruction.in_registers and prefix == NONE:
            self.load_configuration(self.read(instruction.address, PALETTE_BYTES))
        elif not instruction.in_registers and prefix == P66:
            self.write(instruction.address, self.configuration)
        else:
            raise Fault(UNDEFINED)

    def load_configuration(self, data):
        palette, start_row = data[0], data[1]
        if palette > 1 or start_row >= ROWS or any(data[2:16]):
            raise Fault(PROTECTION)
        row_bytes, rows = list(struct.unpack_from("<16H", data, 16)), list(data[48:64])
        if any(row_bytes[TILES:]) or any(rows[TILES:]):
            raise Fault(PROTECTION)
        for width, height in zip(row_bytes[:TILES], rows[:TILES]):
            if width > ROW_BYTES or height > ROWS or (width == 0) != (height == 0):
                raise Fault(PROTECTION)
        self.release()
        if palette == 1:
            self.configuration = data
            self.rows, self.row_bytes = rows[:TILES], row_bytes[:TILES]

    def existing(self, tile):
        if tile >= TILES or self.rows[tile] == 0:
            raise Fault(UNDEFINED)
        return tile

    def move(self, instruction, store):
        if not instruction.has_index:
            raise Fault(UNDEFINED)
        tile = self.existing(instruction.first)
        width, rows = self.row_bytes[tile], self.rows[tile]
        places = [instruction.address + row * instruction.stride for row in range(rows)]
        if store:
            for place, row in zip(places, self.content[tile]):
                self.write(place, row[:width])
            return
        loaded = [self.read(place, width).ljust(ROW_BYTES, b"\0") for place in places]
        self.content[tile] = loaded + [bytes(ROW_BYTES)] * (ROWS - rows)

    def multiply(self, instruction, product):
        """Checks the shapes; the rows of the sums become what `product` makes of them."""
        sums, left, right = instruction.first, instruction.third, instruction.second
        if len({sums, left, right}) != 3:
            raise Fault(UNDEFINED)
        for tile in (sums, left, right):
            self.existing(tile)
        if (
            self.rows[sums] != self.rows[left]
            or self.row_bytes[sums] != self.row_bytes[right]
            or self.row_bytes[left] != 4 * self.rows[right]
            or any(self.row_bytes[tile] % 4 for tile in (sums, left, right))
        ):
            raise Fault(UNDEFINED)
        columns, depth = self.row_bytes[sums] // 4, self.rows[right]
        rows = product(
            self.content[sums],
            self.content[left],
            self.content[right],
            self.rows[sums],
            columns,
            depth,
        )
        filled = [row.ljust(ROW_BYTES, b"\0") for row in rows]
        self.content[sums] = filled + [bytes(ROW_BYTES)] * (ROWS - len(filled))

    @staticmethod
    def integers(sums, left, right, rows, columns, depth, left_signed, right_signed):
        """Four neighbours along K for each column and row of the right tile; sums wrap at 32 bits."""
        left_format = f"<{4 * depth}{'b' if left_signed else 'B'}"
        right_format = f"<{4 * columns}{'b' if right_signed else 'B'}"
        right_rows = [struct.unpack_from(right_format, row) for row in right[:depth]]
        by_column = [
            [v for row in right_rows for v in row[4 * n : 4 * n + 4]] for n in range(columns)
        ]
        results = []
        for m in range(rows):
            a = struct.unpack_from(left_format, left[m])
            old = struct.unpack_from(f"<{columns}I", sums[m])
            cells = (old[n] + sum(map(mul, a, by_column[n])) & 0xFFFFFFFF for n in range(columns))
            results.append(struct.pack(f"<{columns}I", *cells))
        return results

    @staticmethod
    def halves(sums, left, right, rows, columns, depth):
        """Even and odd neighbours along K are summed apart, then together, then onto the old sums."""

        def widen(row, count):
            """bfloat16 to float; subnormal values count as zero."""
            words = struct.unpack_from(f"<{count}H", row)
            return struct.unpack(
                f"<{count}f",
                struct.pack(f"<{count}I", *(w << 16 if w & 0x7F80 else 0 for w in words)),
            )

        singles = struct.Struct(f"<{2 * columns}f")
        right_rows = [widen(row, 2 * columns) for row in right[:depth]]
        results = []
        for m in range(rows):
            a = widen(left[m], 2 * depth)
            partial = [0.0] * (2 * columns)
            for k in range(depth):
                pair, b = a[2 * k : 2 * k + 2] * columns, right_rows[k]
                # A product of two bfloat16 is exact in a double, so packing rounds once, as an FMA does.
                products = map(mul, pair, b)
                partial = singles.unpack(rounded(singles, map(add, partial, products)))
            both = struct.Struct(f"<{columns}f")
            added = both.unpack(
                rounded(both, (partial[2 * n] + partial[2 * n + 1] for n in range(columns)))
            )
            old = both.unpack_from(sums[m])
            results.append(rounded(both, (x + y for x, y in zip(old, added))))
        return results
