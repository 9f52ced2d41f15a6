//! From bytes, as they come, to texts.

use op_dbus_api::{Error, ErrorName};
use serde::Deserialize;

/// How texts follow one another in a file descriptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Framing {
    /// A line each, without its end (`\n` or `\r\n`). An empty line is an empty text.
    #[default]
    Lines,
    /// A NUL after each, as `find -print0` and `sort -z` have it.
    Nul,
    /// A JSON value on each line: a string, or an object with a string named `text`.
    JsonLines,
}

/// Bytes that JSON may take for one byte of text: `\u00ff`.
const JSON_ESCAPE_BYTES: usize = 6;
/// What else an object may hold beside its text.
const JSON_BESIDE_BYTES: usize = 64 << 10;

impl Framing {
    /// The names that options have for them.
    pub const NAMES: [(&str, Self); 3] =
        [("lines", Self::Lines), ("nul", Self::Nul), ("json-lines", Self::JsonLines)];

    const fn end(self) -> u8 {
        if matches!(self, Self::Nul) { 0 } else { b'\n' }
    }

    const fn record(self) -> &'static str {
        if matches!(self, Self::Nul) { "record" } else { "line" }
    }
}

/// Takes bytes apart. It holds one record at most, of bounded length.
#[derive(Debug)]
pub struct Records {
    framing: Framing,
    text_bytes_max: usize,
    record_bytes_max: usize,
    /// The start of a record whose end has not come yet.
    partial: Vec<u8>,
    /// Records that are complete.
    complete: u64,
}

/// The one member of an object that matters; the others are passed over.
#[derive(Deserialize)]
struct Object {
    text: String,
}

impl Records {
    /// Nothing has come yet.
    pub fn new(framing: Framing, text_bytes_max: usize) -> Self {
        let record_bytes_max = match framing {
            // A carriage return may follow a text of full length.
            Framing::Lines | Framing::Nul => text_bytes_max + 1,
            Framing::JsonLines => JSON_ESCAPE_BYTES * text_bytes_max + JSON_BESIDE_BYTES,
        };
        Self { framing, text_bytes_max, record_bytes_max, partial: Vec::new(), complete: 0 }
    }

    /// Hands every text to `take` whose end is in `bytes`.
    ///
    /// # Errors
    /// `InvalidArgument` for what is no text, `TooLarge` for one that is too long, or what stands beside it; with its
    /// place.
    pub fn push(&mut self, mut bytes: &[u8], mut take: impl FnMut(String)) -> Result<(), Error> {
        while let Some(end) = bytes.iter().position(|byte| *byte == self.framing.end()) {
            let (record, rest) = (&bytes[..end], &bytes[end + 1..]);
            // As of one that comes in pieces, so that how it comes makes no difference.
            if record.len() > self.record_bytes_max {
                return Err(self.record_too_long());
            }
            if self.partial.is_empty() {
                take(self.text(record)?);
            } else {
                self.hold(record)?;
                let whole = std::mem::take(&mut self.partial);
                take(self.text(&whole)?);
            }
            bytes = rest;
        }
        self.hold(bytes)
    }

    /// The last text, if the bytes ended within one.
    ///
    /// # Errors
    /// As [`Records::push`].
    pub fn finish(mut self) -> Result<Option<String>, Error> {
        let last = std::mem::take(&mut self.partial);
        if last.is_empty() { Ok(None) } else { self.text(&last).map(Some) }
    }

    fn hold(&mut self, bytes: &[u8]) -> Result<(), Error> {
        if self.partial.len() + bytes.len() > self.record_bytes_max {
            return Err(self.record_too_long());
        }
        self.partial.extend_from_slice(bytes);
        Ok(())
    }

    fn text(&mut self, record: &[u8]) -> Result<String, Error> {
        let text = match self.framing {
            Framing::Lines => utf8(record.strip_suffix(b"\r").unwrap_or(record)),
            Framing::Nul => utf8(record),
            Framing::JsonLines => json(record),
        };
        let text = text.map_err(|what| self.invalid(&what))?;
        if text.len() > self.text_bytes_max {
            return Err(self.too_long());
        }
        // Nothing on the bus can hold it either, so that every way takes the same texts.
        if text.contains('\0') {
            return Err(self.invalid("holds a NUL character, which no text may; remove it"));
        }
        self.complete += 1;
        Ok(text)
    }

    fn invalid(&self, what: &str) -> Error {
        let message =
            format!("{} {} of the source {what}", self.framing.record(), self.complete + 1);
        Error::new(ErrorName::InvalidArgument, message)
    }

    /// Of a record that was not taken apart: on a line of JSON another member may be what is long.
    fn record_too_long(&self) -> Error {
        if self.framing != Framing::JsonLines {
            return self.too_long();
        }
        let message = format!(
            "line {} of the source is longer than {} bytes with all its members, the limit for one \
             line; leave out what is not \"text\", or split the text",
            self.complete + 1,
            self.record_bytes_max
        );
        Error::new(ErrorName::TooLarge, message)
    }

    fn too_long(&self) -> Error {
        let message = format!(
            "{} {} of the source has a text longer than {} bytes, the limit for one text; split it",
            self.framing.record(),
            self.complete + 1,
            self.text_bytes_max
        );
        Error::new(ErrorName::TooLarge, message)
    }
}

fn utf8(record: &[u8]) -> Result<String, String> {
    let text = std::str::from_utf8(record);
    text.map(str::to_owned).map_err(|_| "is not UTF-8; convert it".to_owned())
}

/// The parser's own message may quote the text, so only the place is passed on.
fn json(record: &[u8]) -> Result<String, String> {
    let start = record.iter().find(|byte| !byte.is_ascii_whitespace());
    let text = match start {
        Some(b'"') => serde_json::from_slice::<String>(record),
        Some(b'{') => serde_json::from_slice(record).map(|object: Object| object.text),
        _ if record.starts_with(b"\xef\xbb\xbf") => {
            return Err("begins with a byte order mark; save the source without one".to_owned());
        }
        _ => return Err("is neither a JSON string nor an object with \"text\"".to_owned()),
    };
    text.map_err(|error| match error.classify() {
        serde_json::error::Category::Data => "has no string \"text\"; give it one, once".to_owned(),
        _ => format!("is not JSON from its column {} on", error.column()),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn texts(framing: Framing, pieces: &[&[u8]]) -> Result<Vec<String>, Error> {
        let (mut records, mut texts) = (Records::new(framing, 8), Vec::new());
        for piece in pieces {
            records.push(piece, |text| texts.push(text))?;
        }
        texts.extend(records.finish()?);
        Ok(texts)
    }

    fn refusal(framing: Framing, bytes: &[u8]) -> String {
        texts(framing, &[bytes]).unwrap_err().message().to_owned()
    }

    #[test]
    fn every_line_is_a_text_and_the_last_end_may_be_missing() {
        assert_eq!(texts(Framing::Lines, &[b"a\n\nb\r\nc"]).unwrap(), ["a", "", "b", "c"]);
        assert_eq!(texts(Framing::Lines, &[b""]).unwrap(), [""; 0]);
        assert_eq!(texts(Framing::Lines, &[b"\n"]).unwrap(), [""]);
        assert_eq!(texts(Framing::Nul, &[b"a\nb\0\0c\0"]).unwrap(), ["a\nb", "", "c"]);
    }

    #[test]
    fn json_lines_are_strings_or_objects() {
        let lines = b"\"a\\nb\"\n {\"id\": [1, {}], \"text\": \"\\u00e9\"} \r\n";
        assert_eq!(texts(Framing::JsonLines, &[lines]).unwrap(), ["a\nb", "é"]);
        let neither = "line 2 of the source is neither a JSON string nor an object with \"text\"";
        assert_eq!(refusal(Framing::JsonLines, b"\"a\"\n\n"), neither);
        assert_eq!(refusal(Framing::JsonLines, b"\"a\"\n[\"b\"]"), neither);
        let without = "line 1 of the source has no string \"text\"; give it one, once";
        assert_eq!(refusal(Framing::JsonLines, b"{\"txt\": \"a\"}"), without);
        assert_eq!(refusal(Framing::JsonLines, b"{\"text\": \"a\", \"text\": \"b\"}"), without);
        let mark =
            "line 1 of the source begins with a byte order mark; save the source without one";
        assert_eq!(refusal(Framing::JsonLines, b"\xef\xbb\xbf\"a\"\n"), mark);
        let secret = refusal(Framing::JsonLines, b"{\"text\": \"secret");
        assert!(secret.contains("is not JSON") && !secret.contains("secret"), "{secret}");
    }

    #[test]
    fn what_is_no_text_is_refused_with_its_place() {
        assert_eq!(
            refusal(Framing::Lines, b"a\n\xff"),
            "line 2 of the source is not UTF-8; convert it"
        );
        let nul = "line 1 of the source holds a NUL character, which no text may; remove it";
        assert_eq!(refusal(Framing::Lines, b"a\0b"), nul);
        assert_eq!(refusal(Framing::JsonLines, b"\"a\\u0000\""), nul);
    }

    #[test]
    fn a_record_is_bounded_before_it_ends() {
        assert_eq!(texts(Framing::Lines, &[b"12345678\r\n"]).unwrap(), ["12345678"]);
        let long = "record 2 of the source has a text longer than 8 bytes, the limit for one text; \
                    split it";
        assert_eq!(refusal(Framing::Nul, b"a\x00123456789"), long);
        let mut endless = Records::new(Framing::Lines, 8);
        assert!((0..4).any(|_| endless.push(b"1234", drop).is_err()));
        assert!(endless.partial.len() <= 9);
    }

    #[test]
    fn a_record_is_bounded_however_it_comes() {
        let spaces = vec![b' '; 8 * JSON_ESCAPE_BYTES + JSON_BESIDE_BYTES];
        let line = [&spaces[..], b"\"a\"\n"].concat();
        for pieces in [&[&line[..]][..], &[&line[..9], &line[9..]]] {
            let refusal = texts(Framing::JsonLines, pieces).unwrap_err();
            assert_eq!(refusal.name(), ErrorName::TooLarge, "in {} pieces", pieces.len());
        }
        assert_eq!(texts(Framing::JsonLines, &[&line[9..]]).unwrap(), ["a"]);
    }

    /// Whoever has a short text there looks elsewhere for what is long.
    #[test]
    fn a_line_that_is_long_beside_its_text_is_told_as_that() {
        let beside = "x".repeat(8 * JSON_ESCAPE_BYTES + JSON_BESIDE_BYTES);
        let line = format!("\"a\"\n{{\"text\": \"b\", \"body\": \"{beside}\"}}\n");
        let long = "line 2 of the source is longer than 65584 bytes with all its members, the limit for \
                    one line; leave out what is not \"text\", or split the text";
        assert_eq!(refusal(Framing::JsonLines, line.as_bytes()), long);
        let text =
            "line 1 of the source has a text longer than 8 bytes, the limit for one text; split it";
        assert_eq!(refusal(Framing::JsonLines, b"{\"text\": \"123456789\"}"), text);
    }

    proptest! {
        #[test]
        fn pieces_do_not_matter(bytes in "[ab\n\r\u{0}é]{0,40}", cuts in prop::collection::vec(0..40_usize, 0..5)) {
            let bytes = bytes.as_bytes();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&[u8]> = cuts.windows(2).map(|cut| &bytes[cut[0]..cut[1]]).collect();
            for (_, framing) in Framing::NAMES {
                prop_assert_eq!(texts(framing, &pieces), texts(framing, &[bytes]));
            }
        }
    }
}
