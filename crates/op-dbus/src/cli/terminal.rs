//! What is different when a person looks on: colour, and text that can't play tricks.

use std::fmt;
use std::io::IsTerminal;

pub use op_dbus_models::printable;

/// Whether standard output is a terminal that wants colour.
pub fn colour() -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    can_draw() && !refused
}

/// Whether standard output is a terminal that understands more than text.
pub fn can_draw() -> bool {
    let dumb = std::env::var_os("TERM").is_some_and(|value| value == "dumb");
    std::io::stdout().is_terminal() && !dumb
}

/// A colour of the basic terminal palette.
#[derive(Clone, Copy)]
pub enum Colour {
    Good,
    Doubtful,
    Bad,
    Faint,
}

impl Colour {
    const fn code(self) -> u8 {
        match self {
            Self::Good => 32,
            Self::Doubtful => 33,
            Self::Bad => 31,
            Self::Faint => 2,
        }
    }
}

/// `text` in `colour` when `enabled`, as it is otherwise.
pub fn paint(text: impl fmt::Display, colour: Colour, enabled: bool) -> String {
    match enabled {
        true => format!("\x1b[{}m{text}\x1b[0m", colour.code()),
        false => text.to_string(),
    }
}

/// Sentences for a terminal, each on its own line and [`printable`].
pub fn harmless(sentences: impl fmt::Display) -> String {
    let sentences = sentences.to_string();
    let lines = sentences.split('\n').map(|line| printable(line, usize::MAX));
    lines.collect::<Vec<_>>().join("\n")
}

/// A whole number with a thin grouping: `1,234,567`.
pub fn grouped(number: u64) -> String {
    indicatif::HumanCount(number).to_string()
}

/// A number with its noun: `1 call`, `1,234 calls`.
pub fn counted(number: u64, one: &str, many: &str) -> String {
    format!("{} {}", grouped(number), if number == 1 { one } else { many })
}

/// Microseconds as milliseconds, without the unit.
pub fn milliseconds(microseconds: u64) -> String {
    format!("{:.1}", microseconds as f64 / 1000.0)
}

/// A duration in the largest two units that say something: `3 d 4 h`, `12 min 5 s`, `7 s`.
pub fn since(seconds: u64) -> String {
    let units = [("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)];
    let mut parts = Vec::new();
    let mut rest = seconds;
    for (name, size) in units {
        if rest >= size && parts.len() < 2 {
            parts.push(format!("{} {name}", rest / size));
        }
        rest %= size;
    }
    if parts.is_empty() { "0 s".to_owned() } else { parts.join(" ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_keep_their_lines_and_nothing_else_that_controls() {
        assert_eq!(harmless("one\x1b[2J\n\r  two\n"), "one·[2J\n·  two\n");
    }

    #[test]
    fn durations_show_two_units() {
        assert_eq!(since(0), "0 s");
        assert_eq!(since(59), "59 s");
        assert_eq!(since(3_725), "1 h 2 min");
        assert_eq!(since(90_061), "1 d 1 h");
    }
}
