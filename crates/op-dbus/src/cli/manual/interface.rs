//! `org.opdbus.Embedding1(5)`: the interface files, doc comments and all, as a manual page.

use std::io;

use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};

use super::page::Page;

/// Name of the page.
pub const NAME: &str = op_dbus_api::BUS_NAME;

/// The committed files, which the service's own introspection is held to.
const FILES: [&str; 3] = [
    include_str!("../../../../../dbus-policy/interfaces/org.opdbus.Embedding1.Embedder.xml"),
    include_str!("../../../../../dbus-policy/interfaces/org.opdbus.Embedding1.Manager.xml"),
    include_str!("../../../../../dbus-policy/interfaces/org.opdbus.Embedding1.Job.xml"),
];

/// # Errors
/// None with the files that are built in; the test of the page holds them to that.
pub fn page() -> io::Result<String> {
    let mut page = Page::new(NAME, "5", "text embeddings on D-Bus");
    page.section("SYNOPSIS").lines(
        "bus name     org.opdbus.Embedding1\n\
         object path  /org/opdbus/Embedding1\n\
         interfaces   org.opdbus.Embedding1.Embedder, org.opdbus.Embedding1.Manager\n\
         object path  /org/opdbus/Embedding1/jobs/NAME\n\
         interface    org.opdbus.Embedding1.Job",
    );
    for file in FILES {
        for element in elements(file).map_err(io::Error::other)? {
            element.write(&mut page);
        }
    }
    Ok(page.see_also(&["op-dbus(1)", "op-dbus.toml(5)", "op-dbus.service(8)", "busctl(1)"]))
}

/// An interface or a member of one, with the comment before it.
#[derive(Debug, Default)]
struct Element {
    /// The XML element: interface, method, property or signal.
    kind: String,
    name: String,
    /// D-Bus type and access of a property.
    value: String,
    arguments: Vec<Argument>,
    comment: String,
}

#[derive(Debug)]
struct Argument {
    name: String,
    signature: String,
    out: bool,
}

/// The elements of a file in its order.
fn elements(xml: &str) -> Result<Vec<Element>, quick_xml::Error> {
    let mut reader = Reader::from_str(xml);
    let (mut elements, mut comment) = (Vec::<Element>::new(), String::new());
    loop {
        match reader.read_event()? {
            Event::Comment(text) => comment = text.to_string(),
            Event::Start(start) | Event::Empty(start) => {
                let kind = start.name().as_ref().to_owned();
                let of = |key| attribute(&start, key);
                match (kind.as_str(), elements.last_mut()) {
                    ("interface" | "method" | "property" | "signal", _) => elements.push(Element {
                        name: of("name")?,
                        value: of("type")?,
                        comment: std::mem::take(&mut comment),
                        arguments: Vec::new(),
                        kind,
                    }),
                    ("arg", Some(element)) => element.arguments.push(Argument {
                        name: of("name")?,
                        signature: of("type")?,
                        out: of("direction")? == "out",
                    }),
                    _ => {}
                }
            }
            Event::Eof => return Ok(elements),
            _ => {}
        }
    }
}

/// An attribute's value; empty without it.
fn attribute(start: &BytesStart<'_>, key: &str) -> Result<String, quick_xml::Error> {
    match start.try_get_attribute(key)? {
        Some(attribute) => Ok(attribute.value.into_owned()),
        None => Ok(String::new()),
    }
}

impl Element {
    fn write(&self, page: &mut Page) {
        match self.kind.as_str() {
            "interface" => {
                let short = self.name.rsplit('.').next().unwrap_or(&self.name);
                page.section(&short.to_uppercase()).paragraph(&format!("`{}`", self.name));
            }
            "property" => {
                page.subsection(&format!("{}: property {}", self.name, self.value));
            }
            kind => {
                page.subsection(&format!("{}: {kind}", self.name)).lines(&self.signature());
            }
        }
        // The first line names the element again.
        for block in blocks(self.comment.trim_start().split_once('\n').map_or("", |(_, rest)| rest))
        {
            match block {
                Block::Paragraph(text) => page.paragraph(&text),
                Block::Term(term, meaning) => page.term(&term, &meaning),
            };
        }
    }

    /// `Name(in s text) -> d cosine`, an argument a line where there are many.
    fn signature(&self) -> String {
        let listed = |out: bool| {
            let arguments = self.arguments.iter().filter(|argument| argument.out == out);
            let words = arguments.map(|one| format!("{} {}", one.signature, one.name));
            words.collect::<Vec<_>>().join(", ")
        };
        match listed(true) {
            none if none.is_empty() => format!("{}({})", self.name, listed(false)),
            replies => format!("{}({})\n    -> {replies}", self.name, listed(false)),
        }
    }
}

/// A part of a comment.
#[derive(Debug, PartialEq)]
enum Block {
    Paragraph(String),
    Term(String, String),
}

/// The parts of a comment: `@name: meaning`, `word: meaning` and `key type  meaning` are terms, as
/// long as what follows is indented or not a term itself; an empty line ends them all.
fn blocks(comment: &str) -> Vec<Block> {
    let margin = comment.lines().filter(|line| !line.trim().is_empty()).map(indentation).min();
    let margin = margin.unwrap_or(0);
    let mut blocks: Vec<Block> = Vec::new();
    let mut open = false;
    for line in comment.lines() {
        let text = line.trim();
        if text.is_empty() {
            open = false;
            continue;
        }
        let depth = indentation(line).saturating_sub(margin);
        if let Some((term, meaning)) = term(text, depth) {
            blocks.push(Block::Term(term, meaning));
            open = true;
            continue;
        }
        match blocks.last_mut() {
            Some(Block::Paragraph(words) | Block::Term(_, words)) if open => {
                words.push(' ');
                words.push_str(text);
            }
            _ => blocks.push(Block::Paragraph(text.to_owned())),
        }
        open = true;
    }
    // What describes the file and not the interface.
    blocks.retain(|block| !matches!(block, Block::Term(term, _) if term == "short_description"));
    blocks
}

/// The term that a line begins with, and the beginning of its meaning.
fn term(text: &str, depth: usize) -> Option<(String, String)> {
    let owned = |(term, meaning): (&str, &str)| (term.to_owned(), meaning.trim().to_owned());
    if let Some(argument) = text.strip_prefix('@') {
        return argument.split_once(": ").map(owned);
    }
    // A table is indented by two, what continues a line of it by more.
    if depth == 2 {
        return text.split_once("  ").or_else(|| text.split_once(". ")).map(owned).or_else(|| {
            let (key, rest) = text.split_once(' ')?;
            let (signature, meaning) = rest.split_once(' ')?;
            Some((format!("{key} {signature}"), meaning.trim().to_owned()))
        });
    }
    text.split_once(": ").filter(|(word, _)| is_state(word)).map(owned)
}

/// The values of `State` stand one a line, each with its meaning.
fn is_state(word: &str) -> bool {
    use op_dbus_api::State::{Degraded, Disabled, Draining, Failed, Loading, Ready};
    let of_service = [Degraded, Disabled, Draining, Failed, Loading, Ready];
    // A job can fail as well.
    ["running", "done"].contains(&word) || of_service.iter().any(|one| one.as_str() == word)
}

fn indentation(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comment_is_paragraphs_and_terms() {
        let comment = "
              @text: the text; it may
                     be empty
              @vector: its vector

              One text,
              one vector.

                level s         another level
                                than the one in force
                deadline_ms u   milliseconds: many

              The end.
        ";
        let term = |term: &str, text: &str| Block::Term(term.to_owned(), text.to_owned());
        let paragraph = |text: &str| Block::Paragraph(text.to_owned());
        let expected = [
            term("text", "the text; it may be empty"),
            term("vector", "its vector"),
            paragraph("One text, one vector."),
            term("level s", "another level than the one in force"),
            term("deadline_ms u", "milliseconds: many"),
            paragraph("The end."),
        ];
        assert_eq!(blocks(comment), expected);

        let of_service = ["disabled", "loading", "ready", "degraded", "draining", "failed"];
        let of_job = ["running", "done", "failed"];
        for (file, states) in [(FILES[0], &of_service[..]), (FILES[2], &of_job[..])] {
            let all = elements(file).unwrap();
            let state = all.iter().find(|element| element.name == "State").unwrap();
            let named = |block| match block {
                Block::Term(term, _) => Some(term),
                Block::Paragraph(_) => None,
            };
            let terms: Vec<String> = blocks(&state.comment).into_iter().filter_map(named).collect();
            assert_eq!(terms, states);
        }
    }

    #[test]
    fn a_method_is_shown_with_its_types() {
        let all = elements(FILES[0]).unwrap();
        let rank = all.iter().find(|element| element.name == "Rank").unwrap();
        let signature = "Rank(s query, as candidates, u count)\n    -> a(ud) ranks";
        assert_eq!(rank.signature(), signature);
        let level = all.iter().find(|element| element.name == "VectorLevel").unwrap();
        assert_eq!((level.kind.as_str(), level.value.as_str()), ("property", "s"));
    }
}
