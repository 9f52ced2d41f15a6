//! The encoder: from the tokens of some texts, one after another, to a vector for each text.
//!
//! Products see the tokens of all texts as rows of one matrix, attention and pooling see one text
//! at a time. Every sum runs over one row, one text or one column of weights in a fixed order, so no
//! neighbour can change a vector, nor can the way in which the work is shared out.
//!
//! A team may compute together: then each member has its columns of every product and its heads of
//! every attention, and works out the cheap rest for itself.

use op_dbus_graph::Pooling;

use crate::arena::Buffers;
use crate::head;
use crate::kernels::attention::Attention;
use crate::kernels::norm::Norm;
use crate::kernels::product::{Activation, Finish, GROUP, Operand, Product, Rows, Weights};
use crate::kernels::{Element, Kernels};
use crate::maxima::{Input, Recorder};
use crate::packed::Packed;
use crate::plan::{LayerPlan, LinearPlan, NormPlan};
use crate::team::Barrier;
use crate::tuning::Tuning;

/// The widest vector of any instruction set, in 32-bit floats.
const LANES_MAX: usize = 16;

/// A model that is ready to compute.
pub(crate) struct Model {
    pub packed: Packed,
    pub kernels: Kernels,
    pub pooling: Pooling,
    pub normalize: bool,
    /// `[heads][2 · positions]`: the bias of the key that lies `index - (positions - 1)` tokens
    /// behind the query; empty without a relative position bias.
    bias: Vec<f32>,
    /// Sees the inputs of all products, while a model of 32-bit floats is calibrated.
    pub recorder: Option<Recorder>,
    /// Most tokens that go through a layer together, unless a single text has more; at most
    /// [`STRIP_MAX`](crate::kernels::product::STRIP_MAX).
    pub strip: usize,
}

/// One text of a batch.
#[derive(Clone, Copy)]
pub(crate) struct Text<'a> {
    pub ids: &'a [i32],
    /// Where its vector goes: as many floats as the model has dimensions, touched by nobody else.
    pub out: *mut f32,
}

/// Some texts that go through one layer together: whole ones, and few tokens, unless a single text
/// has more, so that queries, keys and values are still in the second level cache when they are
/// needed.
struct Group<'a> {
    texts: &'a [Text<'a>],
    /// Row of its first token.
    first: usize,
    tokens: usize,
}

/// A member's place in a team: who it is, where all meet, and the memory that it works in.
#[derive(Clone, Copy)]
pub(crate) struct Seat<'a> {
    pub member: usize,
    pub barrier: &'a Barrier,
    /// This member's alone.
    pub own: &'a Buffers,
    /// The same for all members; may be one of theirs.
    pub shared: &'a Buffers,
}

impl Model {
    pub fn new(packed: Packed, kernels: Kernels, pooling: Pooling, normalize: bool) -> Self {
        let bias = spread_bias(&packed);
        let strip = Tuning::default().strip;
        Self { packed, kernels, pooling, normalize, bias, recorder: None, strip }
    }

    /// The longest text that there are positions for.
    pub fn positions(&self) -> usize {
        self.packed.shape.positions
    }

    /// Computes the vectors of `texts` as one member of a team.
    ///
    /// # Safety
    /// The CPU has the instruction set of the kernels. The arenas of the seat were made for this
    /// model and layout and hold all tokens of `texts`; each member has an arena of its own, all
    /// have the same shared one, `texts` and barrier, and are as many as that counts; nobody else
    /// uses these arenas. Ids and lengths are within the model's vocabulary and positions.
    pub unsafe fn encode(&self, seat: &Seat<'_>, texts: &[Text<'_>]) {
        let Seat { member, barrier, own, shared } = *seat;
        let member = Member { model: self, member, barrier, own, shared, texts };
        // SAFETY: the caller's promise is the contract of all of these.
        unsafe {
            member.embed();
            for (index, layer) in self.packed.plan.layers.iter().enumerate() {
                for group in groups(texts, self.strip) {
                    member.attention(index, layer, &group);
                    member.feed_forward(index, layer, &group);
                }
            }
            member.pool();
        }
    }
}

/// One member's view of one batch. The methods have the contract of [`Model::encode`].
struct Member<'a> {
    model: &'a Model,
    member: usize,
    barrier: &'a Barrier,
    own: &'a Buffers,
    shared: &'a Buffers,
    texts: &'a [Text<'a>],
}

impl Member<'_> {
    /// Word, position and type of every token, normalised, into `own.x`.
    unsafe fn embed(&self) {
        let Packed { plan, shape, .. } = &self.model.packed;
        let packed = &self.model.packed;
        let positions = packed.floats(&plan.positions);
        let mut row = 0;
        for text in self.texts {
            for (word, place) in shape.rows(text.ids) {
                let position = &positions[place * shape.hidden..][..shape.hidden];
                // SAFETY: the arena holds whole vectors of all tokens, and `x` is this member's alone.
                let to = unsafe {
                    let to = self.own.x.add(row * self.own.stride);
                    std::slice::from_raw_parts_mut(to, shape.hidden.next_multiple_of(LANES_MAX))
                };
                // What is behind them norms read, and one without a number leaves none there.
                to[shape.hidden..].fill(0.0);
                let to = &mut to[..shape.hidden];
                let words = word * shape.hidden..(word + 1) * shape.hidden;
                if self.model.kernels.layout.weight == Element::F32 {
                    head::add(&packed.floats(&plan.words)[words], position, to);
                } else {
                    let table: &[u16] = bytemuck::cast_slice(packed.part(&plan.words));
                    head::add_bf16(&table[words], position, to);
                }
                row += 1;
            }
        }
        // SAFETY: the contract.
        unsafe { self.normalize(&plan.embedding_norm, self.own.x, self.own.x, row) }
    }

    /// Queries, keys and values of a group, and the heads; ends in `shared.context`.
    unsafe fn attention(&self, index: usize, layer: &LayerPlan, group: &Group<'_>) {
        let (own, shared) = (self.own, self.shared);
        // SAFETY: the contract; the columns and heads of members do not overlap, and the barriers
        // lie between what one writes and what another reads.
        unsafe {
            for (first, rows) in strips(group.tokens, self.model.strip) {
                let x = own.x.add((group.first + first) * own.stride);
                self.see(index, Input::Attention, x, rows);
                self.prepare(&layer.attention, x, rows);
                let to = shared.attention.add(first * shared.attention_stride);
                let finish = Finish::Store { to, stride: shared.attention_stride };
                self.multiply(&layer.attention, own.operand, rows, finish);
            }
            self.barrier.wait();
            self.heads(group);
            self.barrier.wait();
        }
    }

    /// This member's heads of a group.
    unsafe fn heads(&self, group: &Group<'_>) {
        let shape = &self.model.packed.shape;
        let (size, positions) = (shape.head(), shape.positions);
        let shared = self.shared;
        let share = |member: usize| shape.heads * member / self.barrier.members();
        let (head, end) = (share(self.member), share(self.member + 1));
        let mut first = 0;
        for text in group.texts {
            let length = text.ids.len();
            let bias = match self.model.bias.get(head * 2 * positions..) {
                Some(bias) if !bias.is_empty() => bias[positions - length..].as_ptr(),
                _ => std::ptr::null(),
            };
            // SAFETY: the contract; texts and heads are within the arena.
            unsafe {
                let queries = shared.attention.add(first * shared.attention_stride + head * size);
                (self.model.kernels.attend)(&Attention {
                    heads: end - head,
                    queries,
                    keys: queries.add(shape.hidden),
                    values: queries.add(2 * shape.hidden),
                    stride: shared.attention_stride,
                    length,
                    size,
                    scale: 1.0 / (size as f32).sqrt(),
                    bias,
                    bias_stride: 2 * positions,
                    to: shared.context.add(first * shared.stride + head * size),
                    to_stride: shared.stride,
                    scratch: self.own.scratch,
                });
            }
            first += length;
        }
    }

    /// Output projection, both norms and the feed-forward network, from `shared.context` to the
    /// group's rows of `own.x`.
    unsafe fn feed_forward(&self, index: usize, layer: &LayerPlan, group: &Group<'_>) {
        let (own, shared, stride) = (self.own, self.shared, self.own.stride);
        let activation = match self.model.packed.shape.activation {
            op_dbus_graph::encoder::Activation::Gelu => Activation::Gelu,
            op_dbus_graph::encoder::Activation::GeluTanh => Activation::GeluTanh,
            op_dbus_graph::encoder::Activation::Relu => Activation::Relu,
        };
        for (first, rows) in strips(group.tokens, self.model.strip) {
            // SAFETY: as in `attention`. What was read of `y` by one member is written by another
            // only behind a barrier that both have passed.
            unsafe {
                let x = own.x.add((group.first + first) * stride);
                let (y, context) =
                    (shared.y.add(first * stride), shared.context.add(first * stride));
                let add = Finish::Add { to: y, residual: x, stride };
                self.see(index, Input::Output, context, rows);
                self.prepare(&layer.output, context, rows);
                self.multiply(&layer.output, own.operand, rows, add);
                self.barrier.wait();
                self.normalize(&layer.attention_norm, y, x, rows);
                self.see(index, Input::Up, x, rows);
                self.prepare(&layer.up, x, rows);
                let smooth = self.smooth(&layer.down);
                let activate = Finish::Activate { activation, to: shared.inner, smooth };
                self.multiply(&layer.up, own.operand, rows, activate);
                self.barrier.wait();
                self.see(index, Input::Down, shared.inner.values.cast(), rows);
                self.multiply(&layer.down, shared.inner, rows, add);
                self.barrier.wait();
                self.normalize(&layer.output_norm, y, x, rows);
            }
        }
    }

    /// From token vectors to those of this member's texts.
    unsafe fn pool(&self) {
        let (model, shape) = (self.model, &self.model.packed.shape);
        let mut first = 0;
        for (index, text) in self.texts.iter().enumerate() {
            let length = text.ids.len();
            if index % self.barrier.members() == self.member {
                // SAFETY: the arena holds all tokens, `x` and `scratch` are this member's alone, and
                // so is the vector of a text that nobody else pools.
                let (tokens, out, scratch) = unsafe {
                    let tokens = self.own.x.add(first * self.own.stride);
                    let size = (length - 1) * self.own.stride + shape.hidden;
                    (
                        std::slice::from_raw_parts(tokens, size),
                        std::slice::from_raw_parts_mut(text.out, shape.dimensions()),
                        std::slice::from_raw_parts_mut(self.own.scratch, head::scratch(shape)),
                    )
                };
                head::finish(model, tokens, self.own.stride, scratch, out);
            }
            first += length;
        }
    }

    /// Rows of `from` as the left operand of the product with `plan`.
    unsafe fn prepare(&self, plan: &LinearPlan, from: *const f32, rows: usize) {
        // SAFETY: the contract.
        unsafe {
            (self.model.kernels.prepare)(&Rows {
                from,
                stride: self.own.stride,
                rows,
                columns: self.model.packed.shape.hidden.next_multiple_of(LANES_MAX),
                smooth: self.smooth(plan),
                to: self.own.operand,
            });
        }
    }

    /// Shows the inputs of a product to the recorder, if there is one.
    unsafe fn see(&self, layer: usize, input: Input, from: *const f32, rows: usize) {
        let Some(recorder) = &self.model.recorder else { return };
        let shape = &self.model.packed.shape;
        let (columns, stride) = match input {
            Input::Down => (shape.inner, self.shared.inner.stride),
            _ => (shape.hidden, self.own.stride),
        };
        for row in 0..rows {
            // SAFETY: the contract; a recorder is there only where operands are 32-bit floats.
            let row = unsafe { std::slice::from_raw_parts(from.add(row * stride), columns) };
            recorder.see(layer, input, row);
        }
    }

    /// The factors of a product's inputs; null where there are none.
    fn smooth(&self, plan: &LinearPlan) -> *const f32 {
        let factors = self.model.packed.floats(&plan.smooth);
        if factors.is_empty() { std::ptr::null() } else { factors.as_ptr() }
    }

    /// This member's columns of a product.
    unsafe fn multiply(&self, plan: &LinearPlan, input: Operand, rows: usize, finish: Finish) {
        let Model { packed, kernels, .. } = self.model;
        // Integers that become an operand are scaled by whole groups.
        let grouped = matches!(finish, Finish::Activate { .. });
        let unit = if grouped && kernels.layout.weight == Element::I8 {
            GROUP
        } else {
            kernels.layout.panel
        };
        let units = plan.columns.div_ceil(unit);
        let share = |member: usize| units * member / self.barrier.members();
        let end = (share(self.member + 1) * unit).min(plan.columns);
        let product = Product {
            input,
            rows,
            weights: Weights {
                panels: packed.part(&plan.panels).as_ptr(),
                steps: plan.steps,
                bias: packed.floats(&plan.bias).as_ptr(),
                scales: packed.floats(&plan.scales).as_ptr(),
            },
            first: share(self.member) * unit,
            end,
            finish,
        };
        // SAFETY: the contract.
        unsafe { (kernels.multiply)(&product) }
    }

    /// Normalises rows of `from`, into `to`.
    unsafe fn normalize(&self, plan: &NormPlan, from: *const f32, to: *mut f32, rows: usize) {
        let Model { packed, kernels, .. } = self.model;
        // SAFETY: the contract.
        unsafe {
            (kernels.normalize)(&Norm {
                from,
                to,
                stride: self.own.stride,
                rows,
                columns: packed.shape.hidden,
                epsilon: packed.shape.epsilon,
                scale: packed.floats(&plan.scale).as_ptr(),
                shift: packed.floats(&plan.shift).as_ptr(),
            });
        }
    }
}

/// The texts in groups of up to `strip` tokens, or one text.
fn groups<'a>(texts: &'a [Text<'a>], strip: usize) -> impl Iterator<Item = Group<'a>> {
    let (mut rest, mut first) = (texts, 0);
    std::iter::from_fn(move || {
        let (mut count, mut tokens) = (0, 0);
        for text in rest {
            if count > 0 && tokens + text.ids.len() > strip {
                break;
            }
            tokens += text.ids.len();
            count += 1;
        }
        let (texts, left) = rest.split_at(count);
        let group = Group { texts, first, tokens };
        rest = left;
        first += tokens;
        (count > 0).then_some(group)
    })
}

/// First row and rows of each strip: few, of about as many rows, each worth the weights' way.
fn strips(tokens: usize, strip: usize) -> impl Iterator<Item = (usize, usize)> {
    let count = tokens.div_ceil(strip);
    let first = move |number: usize| tokens * number / count;
    (0..count).map(move |number| (first(number), first(number + 1) - first(number)))
}

/// The bias of every distance that two tokens can have, so that each query's is one slice.
fn spread_bias(packed: &Packed) -> Vec<f32> {
    let shape = &packed.shape;
    let Some(reach) = shape.reach else { return Vec::new() };
    let values = packed.floats(&packed.plan.bias);
    let mut spread = Vec::with_capacity(shape.heads * 2 * shape.positions + LANES_MAX);
    for head in values.chunks_exact(2 * reach + 1) {
        for index in 0..2 * shape.positions {
            let apart = (index + 1).cast_signed() - shape.positions.cast_signed();
            let apart = apart.clamp(-reach.cast_signed(), reach.cast_signed());
            spread.push(head[(apart + reach.cast_signed()).cast_unsigned()]);
        }
    }
    spread.resize(spread.len() + LANES_MAX, 0.0);
    spread
}
