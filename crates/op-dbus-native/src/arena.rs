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
    /// The parts of it.
    pub buffers: Buffers,
    /// Tokens of the longest text.
    pub length: usize,
}

impl Arena {
    /// An arena for up to `tokens` tokens, in texts of up to `length` of them.
    ///
    /// # Errors
    /// The memory can't be had.
    pub fn new(shape: &Shape, layout: Layout, tokens: usize, length: usize) -> io::Result<Self> {
        let (_, lines) = lay_out(std::ptr::null_mut(), shape, layout, [tokens, length]);
        let memory: MmapRaw = MmapMut::map_anon(lines * LINE_BYTES)?.into();
        // It begins where a page does, and so with a cache line.
        let (buffers, _) = lay_out(memory.as_mut_ptr().cast(), shape, layout, [tokens, length]);
        Ok(Self { memory, buffers, length })
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
}

/// The parts of an arena that begins at `start`, where nothing is touched here, and the cache lines that they take.
fn lay_out(
    start: *mut f32,
    shape: &Shape,
    layout: Layout,
    [tokens, length]: [usize; 2],
) -> (Buffers, usize) {
    let mut lines = 0;
    let mut take = |bytes: usize| {
        let part = start.wrapping_add(lines * LINE);
        // A cache line of slack: vectors are read beyond the last value.
        lines += bytes.div_ceil(LINE_BYTES) + 1;
        part
    };
    let stride = shape.hidden.next_multiple_of(PADDING) + LINE;
    let attention_stride = (3 * shape.hidden).next_multiple_of(PADDING) + LINE;
    // Of a layer's rows, those of the texts that go through it together (`encode::Group`).
    let group = STRIP_MAX.max(length);
    let x = take(tokens * stride * 4);
    let (y, context) = (take(group * stride * 4), take(group * stride * 4));
    let attention = take(group * attention_stride * 4);
    let mut operand = |columns: usize| {
        let stride = columns.next_multiple_of(PADDING) + LINE_BYTES / layout.input_bytes;
        let blocks = columns.div_ceil(GROUP);
        let values = take(STRIP_MAX * stride * layout.input_bytes).cast();
        Operand { values, stride, scales: take(STRIP_MAX * blocks * 2 * 4), blocks }
    };
    let (operand, inner) = (operand(shape.hidden), operand(shape.inner));
    let floats = attention::scratch_floats(length, shape.head()).max(head::scratch(shape));
    let scratch = take(floats * 4);
    let buffers =
        Buffers { x, y, context, stride, attention, attention_stride, operand, inner, scratch };
    (buffers, lines)
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
        let Buffers { x, scratch, .. } = arena.buffers;
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
