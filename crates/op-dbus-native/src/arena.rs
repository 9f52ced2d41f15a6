//! Memory of one compute thread: made once, large enough for every batch, used by all of them.

use crate::head;
use crate::kernels::Layout;
use crate::kernels::attention;
use crate::kernels::product::{GROUP, Operand, STRIP_MAX};
use crate::plan::Shape;

/// Rows are this many values apart, rounded up; a cache line more, so that the rows of a tile do
/// not all fall into the same sets of the cache.
const PADDING: usize = 64;
const LINE_BYTES: usize = 64;

/// Floats of a cache line.
const LINE: usize = LINE_BYTES / size_of::<f32>();

/// Where the parts of an arena are. All pointers stay valid as long as the arena lives.
#[derive(Clone, Copy)]
pub(crate) struct Buffers {
    /// Token vectors, `[tokens][stride]`.
    pub x: *mut f32,
    /// Sums before a norm, `[tokens of a group][stride]`.
    pub y: *mut f32,
    /// Results of the attention, `[tokens of a group][stride]`.
    pub context: *mut f32,
    /// Floats from one token to the next in `x`, `y` and `context`.
    pub stride: usize,
    /// Queries, keys and values, `[tokens of a group][attention_stride]`.
    pub attention: *mut f32,
    pub attention_stride: usize,
    /// Left operand of [`STRIP_MAX`] rows of the hidden dimension.
    pub operand: Operand,
    /// Left operand of [`STRIP_MAX`] rows of the feed-forward network's inner dimension.
    pub inner: Operand,
    /// Scratch memory of the attention.
    pub scratch: *mut f32,
}

// SAFETY: pointers alone; who uses them says what keeps threads apart (`encode`).
unsafe impl Send for Buffers {}
// SAFETY: as above.
unsafe impl Sync for Buffers {}

/// The memory itself.
pub(crate) struct Arena {
    /// A line more than is used, so that the first can begin where a line of the cache does.
    floats: Vec<f32>,
    offsets: Offsets,
    length: usize,
}

#[derive(Clone, Copy)]
struct Offsets {
    x: usize,
    y: usize,
    context: usize,
    attention: usize,
    operand: [usize; 2],
    inner: [usize; 2],
    scratch: usize,
    strides: [usize; 4],
    blocks: [usize; 2],
}

impl Arena {
    /// An arena for up to `tokens` tokens, in texts of up to `length` of them.
    pub fn new(shape: &Shape, layout: Layout, tokens: usize, length: usize) -> Self {
        let stride = shape.hidden.next_multiple_of(PADDING) + LINE;
        let attention_stride = (3 * shape.hidden).next_multiple_of(PADDING) + LINE;
        let apart =
            |columns: usize| columns.next_multiple_of(PADDING) + LINE_BYTES / layout.input_bytes;
        let (operand_stride, inner_stride) = (apart(shape.hidden), apart(shape.inner));
        let blocks = [shape.hidden.div_ceil(GROUP), shape.inner.div_ceil(GROUP)];
        // Of a layer's rows, those of the texts that go through it together (`encode::Group`).
        let group = STRIP_MAX.max(length);
        let mut end = 0;
        let mut take = |bytes: usize| {
            let start = end;
            // A cache line of slack: vectors are read beyond the last value.
            end += bytes.div_ceil(LINE_BYTES) + 1;
            start
        };
        let scales = |blocks: usize| STRIP_MAX * blocks * 2 * 4;
        let offsets = Offsets {
            x: take(tokens * stride * 4),
            y: take(group * stride * 4),
            context: take(group * stride * 4),
            attention: take(group * attention_stride * 4),
            operand: [
                take(STRIP_MAX * operand_stride * layout.input_bytes),
                take(scales(blocks[0])),
            ],
            inner: [take(STRIP_MAX * inner_stride * layout.input_bytes), take(scales(blocks[1]))],
            scratch: take(
                attention::scratch_floats(length, shape.head()).max(head::scratch(shape)) * 4,
            ),
            strides: [stride, attention_stride, operand_stride, inner_stride],
            blocks,
        };
        Self { floats: zeroed((end + 1) * LINE), offsets, length }
    }

    /// Gives the memory back and takes new, of which no page is there before it is written. What
    /// [`buffers`](Self::buffers) told before is of no use any more.
    pub fn renew(&mut self) {
        let floats = self.floats.len();
        // The old one goes first.
        self.floats = Vec::new();
        self.floats = zeroed(floats);
    }

    /// Tokens of the longest text.
    pub fn length(&self) -> usize {
        self.length
    }

    /// The parts.
    pub fn buffers(&mut self) -> Buffers {
        let Offsets { strides, blocks, .. } = self.offsets;
        let offsets = self.offsets;
        let first = self.floats.as_mut_ptr();
        let lines = first.wrapping_add(first.align_offset(LINE_BYTES));
        let at = |line: usize| lines.wrapping_add(line * LINE);
        let operand = |[values, scales]: [usize; 2], stride, blocks| Operand {
            values: at(values).cast(),
            stride,
            scales: at(scales),
            blocks,
        };
        Buffers {
            x: at(offsets.x),
            y: at(offsets.y),
            context: at(offsets.context),
            stride: strides[0],
            attention: at(offsets.attention),
            attention_stride: strides[1],
            operand: operand(offsets.operand, strides[2], blocks[0]),
            inner: operand(offsets.inner, strides[3], blocks[1]),
            scratch: at(offsets.scratch),
        }
    }
}

/// Zeros, which the system has at hand: nothing is written.
fn zeroed(floats: usize) -> Vec<f32> {
    vec![0.0; floats]
}
