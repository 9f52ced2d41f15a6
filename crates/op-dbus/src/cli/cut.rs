//! Which texts were cut, for the warning of a command.

/// Positions that the warning lists.
const LISTED_MAX: usize = 10;

/// The texts that were longer than the model reads.
#[derive(Default)]
pub struct Cut {
    count: u64,
    listed: Vec<u64>,
}

impl Cut {
    /// Text number `index` of all was cut.
    pub fn add(&mut self, index: u64) {
        self.count += 1;
        if self.listed.len() < LISTED_MAX {
            self.listed.push(index);
        }
    }

    /// The sentence about them, if there are any.
    pub fn warning(&self) -> Option<String> {
        let mut list: Vec<String> = self.listed.iter().map(u64::to_string).collect();
        if self.count > self.listed.len() as u64 {
            list.push("…".to_owned());
        }
        let (were, which) = match self.count {
            0 => return None,
            1 => ("text is", "index"),
            _ => ("texts are", "indices"),
        };
        let (count, list) = (self.count, list.join(", "));
        Some(format!("{count} {were} longer than the model reads and cut ({which} {list})"))
    }
}
