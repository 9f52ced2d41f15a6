//! Who computes what of a batch: whole texts for each thread, or all threads on each text.

use std::ops::Range;

use op_dbus_engine::Batch;

/// What splitting every matrix costs beyond the work itself, in percent: barriers, and shares of
/// columns that do not come out even.
const TOGETHER_PERCENT: u64 = 115;

/// The rows of a batch, dealt out.
#[derive(Debug)]
pub(crate) struct Shares {
    /// Row numbers, those of member 0 first.
    rows: Vec<u32>,
    /// Where each member's rows begin in `rows`, and the end.
    starts: Vec<usize>,
    /// Work of each member.
    loads: Vec<u64>,
    /// Member of each row.
    owners: Vec<u32>,
    /// Where each row's ids begin and end.
    texts: Vec<Range<usize>>,
    split: bool,
}

impl Shares {
    pub fn new(members: usize) -> Self {
        Self {
            rows: Vec::new(),
            starts: vec![0; members + 1],
            loads: vec![0; members],
            owners: Vec::new(),
            texts: Vec::new(),
            split: false,
        }
    }

    /// Deals the rows of `batch` out to `members`: the longest first, each to who has least. If that
    /// leaves some idle for too long, all rows go to all.
    pub fn plan(&mut self, batch: &Batch<'_>, members: usize, hidden: usize) {
        let rows = batch.rows();
        self.texts.clear();
        let mut end = 0;
        for text in batch.texts() {
            self.texts.push(end..end + text.len());
            end += text.len();
        }
        let texts = &self.texts;
        let cost = |row: u32| {
            let length = texts[row as usize].len() as u64;
            // The products grow with the length, attention with its square: six matrices of
            // hidden × hidden each way (a feed-forward network four times as wide), two of
            // length × hidden.
            length * (6 * hidden as u64 + length)
        };
        self.rows.clear();
        self.rows.extend(0..u32::try_from(rows).unwrap_or(u32::MAX));
        self.rows.sort_unstable_by_key(|&row| (std::cmp::Reverse(cost(row)), row));
        self.owners.clear();
        self.owners.resize(rows, 0);
        self.loads.fill(0);
        for &row in &self.rows {
            let least = (0..members).min_by_key(|&member| self.loads[member]).unwrap_or(0);
            self.loads[least] += cost(row);
            self.owners[row as usize] = u32::try_from(least).unwrap_or(0);
        }
        let total: u64 = self.loads.iter().sum();
        let longest = self.loads.iter().max().copied().unwrap_or(0);
        let together = total / members as u64 * TOGETHER_PERCENT / 100;
        self.split = members == 1 || longest <= together;
        if self.split {
            let owners = &self.owners;
            self.rows.sort_unstable_by_key(|&row| (owners[row as usize], row));
            for member in 0..=members {
                let before = |row: &u32| (owners[*row as usize] as usize) < member;
                self.starts[member] = self.rows.partition_point(before);
            }
        } else {
            self.rows.sort_unstable();
            self.starts.fill(rows);
            self.starts[0] = 0;
        }
    }

    /// Where the ids of a row are.
    pub fn text(&self, row: u32) -> Range<usize> {
        self.texts[row as usize].clone()
    }

    /// Whether each member has texts of its own; else all of them are member 0's.
    pub fn is_split(&self) -> bool {
        self.split
    }

    /// The rows of `member` in parts of up to `tokens` tokens, or of one row.
    pub fn chunks(&self, member: usize, tokens: usize) -> impl Iterator<Item = &[u32]> {
        let mut rest = &self.rows[self.starts[member]..self.starts[member + 1]];
        std::iter::from_fn(move || {
            let mut sum = 0;
            let mut fits = |row: &u32| {
                sum += self.texts[*row as usize].len();
                sum <= tokens
            };
            let count = rest.iter().take_while(|row| fits(row)).count().max(1).min(rest.len());
            let (chunk, left) = rest.split_at(count);
            rest = left;
            (!chunk.is_empty()).then_some(chunk)
        })
    }
}
