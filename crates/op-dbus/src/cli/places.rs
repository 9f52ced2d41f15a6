//! Which line of which file each text of a command is.

use std::sync::Arc;

use parking_lot::Mutex;

/// Where the texts of each file begin, as far as they have been read. It takes memory for each file, and none for a
/// text.
#[derive(Clone, Debug, Default)]
pub struct Places(Arc<Mutex<Vec<(u64, String)>>>);

impl Places {
    /// Text number `first` of all, if one comes, is the first line of this file.
    pub fn begin(&self, first: u64, file: &str) {
        self.0.lock().push((first, file.to_owned()));
    }

    /// The line that text number `index` of all is; none of a text that was an argument.
    pub fn line(&self, index: u64) -> Option<String> {
        let starts = self.0.lock();
        // Files without a line begin where the next one does, and the last of these has it.
        let begun = starts.partition_point(|(first, _)| *first <= index);
        let (first, file) = starts.get(begun.checked_sub(1)?)?;
        Some(place(file, index - first + 1))
    }

    /// What text number `index` of all is called.
    pub fn name(&self, index: u64) -> String {
        self.line(index).unwrap_or_else(|| format!("text {index}"))
    }
}

/// A line of a file, as editors take it.
pub fn place(file: &str, line: u64) -> String {
    format!("{file}:{line}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_a_line_of_the_file_that_it_is_in() {
        let places = Places::default();
        assert_eq!(places.name(0), "text 0");
        for (first, file) in [(0, "empty"), (0, "a"), (2, "none"), (2, "b")] {
            places.begin(first, file);
        }
        let names = [0, 1, 2, 9].map(|index| places.name(index));
        assert_eq!(names, ["a:1", "a:2", "b:1", "b:8"]);
    }
}
