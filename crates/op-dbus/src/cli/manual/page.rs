//! A manual page as it is written: sections, paragraphs, terms. What is in backquotes is bold.

use roff::{Inline, Roff, bold, roman};

/// One page.
pub struct Page(Roff);

impl Page {
    /// A page with its header, `NAME` and `summary`.
    pub fn new(name: &str, section: &str, summary: &str) -> Self {
        let version = concat!("op-dbus ", env!("CARGO_PKG_VERSION"));
        let mut roff = Roff::new();
        // The date stays empty: the same sources make the same page.
        roff.control("TH", [name, section, "", version, "op-dbus"]);
        roff.control("SH", ["NAME"]);
        roff.text([roman(format!("{name} - {summary}"))]);
        Self(roff)
    }

    pub fn section(&mut self, title: &str) -> &mut Self {
        self.0.control("SH", [title]);
        self
    }

    pub fn subsection(&mut self, title: &str) -> &mut Self {
        self.0.control("SS", [title]);
        self
    }

    pub fn paragraph(&mut self, text: &str) -> &mut Self {
        self.0.control("PP", []).text(inlines(text));
        self
    }

    /// A term, and indented under it what it means.
    pub fn term(&mut self, term: &str, meaning: &str) -> &mut Self {
        self.0.control("TP", []).text([bold(term)]).text(inlines(meaning));
        self
    }

    /// One more paragraph under the same term.
    pub fn under_term(&mut self, text: &str) -> &mut Self {
        self.0.control("IP", []).text(inlines(text));
        self
    }

    /// Lines that stay as they are.
    pub fn lines(&mut self, text: &str) -> &mut Self {
        self.0.control("PP", []).control("RS", ["4"]).control("nf", []);
        for line in text.lines() {
            self.0.text([roman(line)]);
        }
        self.0.control("fi", []).control("RE", []);
        self
    }

    /// Ends the page with references such as `op-dbus(1)`.
    pub fn see_also(mut self, pages: &[&str]) -> String {
        self.0.extend([references(pages)]);
        self.0.render()
    }
}

/// The section with references to other pages.
pub fn references(pages: &[&str]) -> Roff {
    let mut words = Vec::new();
    for (position, page) in pages.iter().enumerate() {
        let (name, section) = page.split_at(page.find('(').unwrap_or(page.len()));
        let comma = if position + 1 < pages.len() { ", " } else { "" };
        words.extend([bold(name), roman(format!("{section}{comma}"))]);
    }
    let mut roff = Roff::new();
    roff.control("SH", ["SEE ALSO"]).text(words);
    roff
}

/// Text with `code` in bold.
fn inlines(text: &str) -> Vec<Inline> {
    let parts = text.split('`').enumerate();
    parts.map(|(i, part)| if i % 2 == 1 { bold(part) } else { roman(part) }).collect()
}
