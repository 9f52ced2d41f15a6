//! Introspection data as a set of lines: two documents can be compared whatever their layout.

use std::collections::{BTreeMap, BTreeSet};

/// Everything that callers can rely on in one interface: members, arguments in order with name and
/// type, and annotations. Documentation is left out.
pub fn members(xml: &str, interface: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut path: Vec<String> = Vec::new();
    let mut argument = 0;
    for tag in tags(xml) {
        if tag.closes {
            path.pop();
            continue;
        }
        let own = |name: &str| tag.attributes.get(name).cloned().unwrap_or_default();
        let inside = path.first().is_some_and(|first| first == &format!("interface {interface}"));
        let line = match tag.name.as_str() {
            "interface" => Some(format!("interface {}", own("name"))),
            "method" | "signal" => {
                argument = 0;
                Some(format!("{} {}", tag.name, own("name")))
            }
            "property" => {
                Some(format!("property {} {} {}", own("name"), own("type"), own("access")))
            }
            "arg" => {
                argument += 1;
                let direction = own("direction");
                Some(format!("arg {argument} {direction} {} {}", own("name"), own("type")))
            }
            "annotation" => Some(format!("annotation {} = {}", own("name"), own("value"))),
            _ => None,
        };
        if let Some(line) = line.as_ref().filter(|_| inside) {
            let parent = path.get(1).map(|parent| format!("{parent}: ")).unwrap_or_default();
            // The documentation and the default say nothing that binds.
            if !line.contains("DocString") && !line.ends_with("EmitsChangedSignal = true") {
                found.insert(format!("{parent}{line}"));
            }
        }
        if !tag.empty && !matches!(tag.name.as_str(), "node") {
            path.push(line.unwrap_or_else(|| tag.name.clone()));
        }
    }
    found
}

struct Tag {
    name: String,
    attributes: BTreeMap<String, String>,
    closes: bool,
    empty: bool,
}

/// The tags of a document; comments, declarations and text are passed over.
fn tags(xml: &str) -> Vec<Tag> {
    let mut tags = Vec::new();
    let mut rest = xml;
    while let Some(start) = rest.find('<') {
        rest = &rest[start..];
        let end = if rest.starts_with("<!--") { rest.find("-->") } else { rest.find('>') };
        let Some(end) = end else { break };
        let inner = &rest[1..end];
        rest = &rest[end..];
        if inner.starts_with(['!', '?']) || inner.trim_start_matches('/').starts_with("node") {
            continue;
        }
        let empty = inner.ends_with('/');
        let body = inner.trim_matches('/');
        let (name, attributes) = body.split_once(char::is_whitespace).unwrap_or((body, ""));
        tags.push(Tag {
            name: name.to_owned(),
            attributes: pairs(attributes),
            closes: inner.starts_with('/'),
            empty,
        });
    }
    tags
}

/// `name="value"` pairs.
fn pairs(text: &str) -> BTreeMap<String, String> {
    let mut pairs = BTreeMap::new();
    let mut rest = text;
    while let Some((name, after)) = rest.split_once('=') {
        let after = after.trim_start();
        let Some(quote) = after.chars().next().filter(|quote| "\"'".contains(*quote)) else {
            break;
        };
        let Some((value, after)) = after[1..].split_once(quote) else { break };
        pairs.insert(name.trim().to_owned(), value.to_owned());
        rest = after;
    }
    pairs
}
