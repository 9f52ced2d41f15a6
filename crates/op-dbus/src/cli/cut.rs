//! Which texts were longer than the model reads, for the warning of a command.

use clap::ValueEnum;

use super::places::Places;

/// Texts that the warning lists.
const LISTED_MAX: usize = 10;

/// What happens to a text that is longer than the model reads.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Truncate {
    /// Refuse the call
    Error,
    /// Cut the end (default)
    End,
    /// Cut the start
    Start,
    /// Mean over chunks of the whole text
    Mean,
}

/// The texts that were longer than the model reads.
#[derive(Default)]
pub struct Cut {
    count: u64,
    listed: Vec<u64>,
    /// They were embedded in chunks, and nothing of them is cut.
    whole: bool,
}

impl Cut {
    /// None yet; what will be done with them is as `truncate` says, or as by default.
    pub fn by(truncate: Option<Truncate>) -> Self {
        Self { whole: truncate == Some(Truncate::Mean), ..Self::default() }
    }

    /// Text number `index` of all was longer.
    pub fn add(&mut self, index: u64) {
        self.count += 1;
        if self.listed.len() < LISTED_MAX {
            self.listed.push(index);
        }
    }

    /// The sentence about them, if there are any: by their files and lines, or by their numbers where they have none.
    pub fn warning(&self, places: &Places) -> Option<String> {
        let (are, each, indices) = match self.count {
            0 => return None,
            1 => ("text is", "", "index "),
            _ => ("texts are", "each ", "indices "),
        };
        let lines = self.listed.iter().map(|index| places.line(*index));
        let (which, mut list) = match lines.collect::<Option<Vec<String>>>() {
            Some(lines) => ("", lines),
            None => (indices, self.listed.iter().map(u64::to_string).collect()),
        };
        if self.count > self.listed.len() as u64 {
            list.push("…".to_owned());
        }
        let done = match self.whole {
            true => format!("{each}embedded as the mean of its chunks"),
            false => "cut".to_owned(),
        };
        let (count, list) = (self.count, list.join(", "));
        Some(format!("{count} {are} longer than the model reads and {done} ({which}{list})"))
    }

    /// Whether they are embedded in chunks, and nothing of them is cut.
    pub const fn is_whole(&self) -> bool {
        self.whole
    }

    /// Whether something of them is missing in the vectors.
    pub fn is_loss(&self) -> bool {
        self.count > 0 && !self.whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_files_are_told_as_such() {
        let places = Places::default();
        places.begin(0, "notes.txt");
        places.begin(20, "standard input");
        let mut cut = Cut::default();
        cut.add(16);
        let one = "1 text is longer than the model reads and cut (notes.txt:17)";
        assert_eq!(cut.warning(&places).unwrap(), one);
        (20..30).for_each(|index| cut.add(index));
        let warning = cut.warning(&places).unwrap();
        assert!(warning.contains(" cut (notes.txt:17, standard input:1, "), "{warning}");
        assert!(warning.ends_with(", standard input:9, …)"), "{warning}");
    }
}
