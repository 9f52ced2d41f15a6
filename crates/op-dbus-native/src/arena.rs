//! Memory of one compute thread: made once, large enough for every batch, used by all of them.

use std::io;

use memmap2::{MmapMut, MmapRaw, UncheckedAdvice};

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
    /// Zeros, of which no page is there before it is written. Not of the allocator, which soon keeps for itself
    /// what it gets back, and then writes the zeros.
    memory: MmapRaw,
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
    ///
    /// # Errors
    /// The memory can't be had.
    pub fn new(shape: &Shape, layout: Layout, tokens: usize, length: usize) -> io::Result<Self> {
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
        Ok(Self { memory: MmapMut::map_anon(end * LINE_BYTES)?.into(), offsets, length })
    }

    /// Gives all pages back: what was written is zero again, and lies where it lay.
    pub fn renew(&mut self) {
        // SAFETY: it changes what lies in memory of our own that no reference is made to: `MmapRaw` makes none,
        // and who uses the pointers of `buffers` borrows what owns the arena, as this does, exclusively.
        let given_back = unsafe { self.memory.unchecked_advise(UncheckedAdvice::DontNeed) };
        if let Err(error) = given_back {
            tracing::warn!(%error, "scratch memory can't be given back");
        }
    }

    /// Tokens of the longest text.
    pub fn length(&self) -> usize {
        self.length
    }

    /// The parts.
    pub fn buffers(&self) -> Buffers {
        let Offsets { strides, blocks, .. } = self.offsets;
        let offsets = self.offsets;
        // It begins where a page does, and so with a cache line.
        let lines = self.memory.as_mut_ptr().cast::<f32>();
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::kernels;
    use crate::share::CHUNK_TOKENS;
    use crate::tests::made_up::{SIZES, Weights};
    use crate::{Isa, Precision};

    #[test]
    #[cfg_attr(miri, ignore = "gives pages back, which Miri does not")]
    fn what_is_given_back_is_zero_again_where_it_was() {
        let shape = Shape::of(&Weights::new(SIZES[0], 1).encoder());
        let layout = kernels(Isa::best(), Precision::F32).layout;
        let mut arena = Arena::new(&shape, layout, 64, 40).unwrap();
        let Buffers { x, scratch, .. } = arena.buffers();
        for _ in 0..3 {
            for part in [x, scratch] {
                assert_eq!(part.cast::<u8>().align_offset(LINE_BYTES), 0);
                // SAFETY: parts of the arena, which nobody else uses.
                unsafe {
                    assert_eq!(part.read(), 0.0);
                    part.write(1.0);
                }
            }
            arena.renew();
        }
    }

    /// What `docs/troubleshoot.md` and `docs/install.md` say of a thread, and some for what is hardly ever written.
    #[test]
    fn a_thread_takes_little_memory() {
        let other = Shape::of(&Weights::new(SIZES[0], 1).encoder());
        let layout = kernels(Isa::Portable, Precision::F32).layout;
        // `low`, `medium` and `high`, in the widest of all layouts.
        let levels = [(384, 1536, 128, 4), (384, 1536, 256, 5), (768, 3072, 384, 11)];
        for (hidden, inner, length, mebibytes) in levels {
            let shape = Shape { hidden, heads: 12, inner, ..other.clone() };
            let bytes = Arena::new(&shape, layout, CHUNK_TOKENS, length).unwrap().memory.len();
            assert!(bytes <= mebibytes << 20, "{hidden}, {length} tokens: {bytes} bytes");
        }
    }
}
