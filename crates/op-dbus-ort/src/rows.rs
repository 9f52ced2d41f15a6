//! The rows of a batch as a compiled graph is fed with them: padded to one length, or one behind the other.

use op_dbus_engine::foreign::Padded;
use op_dbus_engine::{Batch, Buckets};
use op_dbus_graph::PADDING_ID;
use ort::session::Session;

/// An input that only a graph without padding has.
const WITHOUT_PADDING: &str = "token_offset";

/// A batch in the form that a graph is fed with, in buffers that are used again for the next one.
#[derive(Debug)]
pub(crate) enum Rows {
    Padded(Padded),
    Packed(Packed),
}

/// What an input is given.
pub(crate) struct Input<'a> {
    pub name: &'static str,
    pub dims: Vec<usize>,
    pub data: &'a [i32],
}

impl Rows {
    /// Empty ones for the graph of `session`.
    ///
    /// # Errors
    /// What ONNX Runtime says, which can't read what the graph says of itself.
    pub fn of(session: &Session) -> ort::Result<Self> {
        if !session.inputs().iter().any(|input| input.name() == WITHOUT_PADDING) {
            return Ok(Self::Padded(Padded::default()));
        }
        let padding = session.metadata()?.custom(PADDING_ID).and_then(|id| id.parse().ok());
        Ok(Self::Packed(Packed { padding, ..Packed::default() }))
    }

    /// Takes a batch over, in a shape that many share if there are `buckets`, with rows of one token behind
    /// the batch's own.
    pub fn fill(&mut self, batch: &Batch<'_>, buckets: Option<Buckets>) {
        match (self, buckets) {
            (Self::Padded(padded), Some(buckets)) => padded.fill_rounded(batch, buckets),
            (Self::Padded(padded), None) => padded.fill(batch),
            (Self::Packed(packed), Some(buckets)) => {
                packed.fill(batch, buckets.shape(batch.rows(), batch.longest()));
            }
            (Self::Packed(packed), None) => packed.fill(batch, [batch.rows(), batch.longest()]),
        }
    }

    /// Gives back what the last batch takes.
    pub fn clear(&mut self) {
        *self = match self {
            Self::Padded(_) => Self::Padded(Padded::default()),
            Self::Packed(packed) => {
                Self::Packed(Packed { padding: packed.padding, ..Packed::default() })
            }
        };
    }

    /// `[rows, sequence length]`.
    pub fn shape(&self) -> [usize; 2] {
        match self {
            Self::Padded(padded) => padded.shape(),
            Self::Packed(packed) => packed.shape,
        }
    }

    /// What the batch gives each input.
    pub fn inputs(&self) -> Vec<Input<'_>> {
        let [rows, length] = self.shape();
        let input = |name, dims: &[usize], data| Input { name, dims: dims.to_vec(), data };
        match self {
            Self::Padded(padded) => vec![
                input("input_ids", &[rows, length], &padded.ids[..]),
                input("lengths", &[rows], &padded.lengths),
            ],
            Self::Packed(packed) => {
                let tokens = packed.ids.len();
                vec![
                    input("input_ids", &[tokens], &packed.ids[..]),
                    input("lengths", &[rows], &packed.lengths),
                    input("position_ids", &[tokens], &packed.positions),
                    input(WITHOUT_PADDING, &[rows, length], &packed.offsets),
                    input("cumulative_lengths", &[rows + 1], &packed.cumulative),
                ]
            }
        }
    }
}

/// A batch without padding.
#[derive(Debug, Default)]
pub(crate) struct Packed {
    /// The token that positions are counted without, from 1; without one they are counted from 0.
    padding: Option<i32>,
    /// Of the padded batch.
    shape: [usize; 2],
    /// Token ids, `[tokens]`.
    ids: Vec<i32>,
    /// Tokens of each row, `[rows]`.
    lengths: Vec<i32>,
    /// The place of each token in its row, `[tokens]`.
    positions: Vec<i32>,
    /// Where each token is in the padded batch, and behind these all other places of it,
    /// `[rows, sequence length]`.
    offsets: Vec<i32>,
    /// Tokens before each row, and all of them, `[rows + 1]`.
    cumulative: Vec<i32>,
}

impl Packed {
    fn fill(&mut self, batch: &Batch<'_>, shape @ [rows, length]: [usize; 2]) {
        self.shape = shape;
        self.lengths.clear();
        self.lengths.extend_from_slice(batch.lengths);
        self.lengths.resize(rows, 1);
        self.ids.clear();
        self.ids.extend_from_slice(batch.ids);
        self.ids.resize(batch.ids.len() + rows - batch.rows(), 0);
        self.positions.clear();
        self.offsets.clear();
        self.cumulative.clear();
        self.cumulative.push(0);
        let mut tokens = 0;
        for (row, own) in self.lengths.iter().enumerate() {
            let own = usize::try_from(*own).unwrap_or(0);
            let ids = &self.ids[tokens..tokens + own];
            match self.padding {
                None => self.positions.extend((0..).take(own)),
                Some(padding) => {
                    let mut counted = 0;
                    self.positions.extend(ids.iter().map(|id| {
                        let counts = *id != padding;
                        counted += i32::from(counts);
                        if counts { counted } else { 0 }
                    }));
                }
            }
            self.offsets.extend(number(row * length)..number(row * length + own));
            tokens += own;
            self.cumulative.push(number(tokens));
        }
        for (row, own) in self.lengths.iter().enumerate() {
            let own = usize::try_from(*own).unwrap_or(0);
            self.offsets.extend(number(row * length + own)..number((row + 1) * length));
        }
    }
}

/// Places in a batch, which the engine keeps far below this.
fn number(place: usize) -> i32 {
    i32::try_from(place).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(padding: Option<i32>, shape: [usize; 2]) -> Packed {
        let mut packed = Packed { padding, ..Packed::default() };
        // What is left of another batch does not show.
        packed.fill(&Batch { ids: &[9; 12], lengths: &[4, 4, 4] }, [3, 4]);
        packed.fill(&Batch { ids: &[5, 1, 7, 8], lengths: &[3, 1] }, shape);
        packed
    }

    #[test]
    fn tokens_are_one_behind_the_other_and_every_place_is_told_once() {
        let packed = filled(None, [4, 4]);
        assert_eq!(packed.ids, [5, 1, 7, 8, 0, 0]);
        assert_eq!(packed.positions, [0, 1, 2, 0, 0, 0]);
        assert_eq!(packed.lengths, [3, 1, 1, 1]);
        assert_eq!(packed.cumulative, [0, 3, 4, 5, 6]);
        assert_eq!(packed.offsets, [0, 1, 2, 4, 8, 12, 3, 5, 6, 7, 9, 10, 11, 13, 14, 15]);
        let packed = filled(None, [2, 3]);
        assert_eq!((packed.ids.len(), &packed.offsets[..]), (4, &[0, 1, 2, 3, 4, 5][..]));
    }

    #[test]
    fn the_padding_token_of_a_text_is_not_counted() {
        assert_eq!(filled(Some(1), [2, 4]).positions, [1, 0, 2, 1]);
    }

    #[test]
    fn what_each_input_is_given_has_its_shape() {
        for rows in [Rows::Packed(filled(None, [4, 8])), Rows::Padded(Padded::default())] {
            for Input { name, dims, data } in rows.inputs() {
                assert_eq!(dims.iter().product::<usize>(), data.len(), "{name}");
            }
        }
    }
}
