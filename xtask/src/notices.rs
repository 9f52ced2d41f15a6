//! What others have made of the program, and what their licences ask to go along with it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::shell::{self, cargo};

/// How files are called in which a crate's licence stands, or what has to be passed on with it.
const NAMES: [&str; 6] = ["license", "licence", "copying", "notice", "copyright", "unlicense"];

const HEAD: &str = "\
op-dbus is under the Apache License 2.0 or the MIT License, at your option. It holds the libraries
below, which others have made, under the licences that stand beside them. Their texts follow.
";

/// A library that others have made and the program holds.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Part {
    pub name: String,
    pub version: String,
    /// As the library states it: an SPDX expression.
    pub licence: String,
    /// Where its source comes from.
    source: String,
    repository: String,
    folder: PathBuf,
}

impl Part {
    /// Whether it is of the registry, and of no other place.
    pub fn is_of_registry(&self) -> bool {
        self.source == "registry+https://github.com/rust-lang/crates.io-index"
    }
}

/// Every library of others in `op-dbus` as it is built on this machine, what is used to build it
/// alone left out, by name.
///
/// # Errors
/// Cargo does not say.
pub fn parts() -> Result<Vec<Part>, String> {
    let host = shell::read(&mut shell::program("rustc", &["-vV"]))?;
    let host = host.lines().find_map(|line| line.strip_prefix("host: ")).unwrap_or_default();
    let words = ["metadata", "--format-version=1", "--locked", "--filter-platform", host];
    let metadata = shell::read_json(&mut cargo(&words))?;
    let packages: HashMap<&str, &Value> = each(&metadata["packages"])
        .filter_map(|package| Some((package["id"].as_str()?, package)))
        .collect();
    let ours = packages.iter().find(|(_, package)| package["name"] == "op-dbus");
    let start = ours.map(|(id, _)| *id).ok_or("cargo metadata: there is no package op-dbus")?;
    let mut parts: Vec<Part> =
        reached(&metadata, start).iter().filter_map(|id| part(packages.get(id)?)).collect();
    parts.sort();
    Ok(parts)
}

fn each(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

/// The packages that go into the one called `start`.
fn reached<'a>(metadata: &'a Value, start: &'a str) -> BTreeSet<&'a str> {
    let nodes: HashMap<&str, &Value> = each(&metadata["resolve"]["nodes"])
        .filter_map(|node| Some((node["id"].as_str()?, node)))
        .collect();
    let mut reached = BTreeSet::from([start]);
    let mut left = vec![start];
    while let Some(id) = left.pop() {
        for dependency in nodes.get(id).into_iter().flat_map(|node| each(&node["deps"])) {
            // Those of build scripts and tests have a kind.
            let ships = each(&dependency["dep_kinds"]).any(|kind| kind["kind"].is_null());
            let id = dependency["pkg"].as_str().filter(|_| ships);
            left.extend(id.filter(|id| reached.insert(id)));
        }
    }
    reached
}

/// A package of others; nothing for our own, which have no source.
fn part(package: &Value) -> Option<Part> {
    let text = |key: &str| package[key].as_str().unwrap_or_default().to_owned();
    let manifest = PathBuf::from(text("manifest_path"));
    Some(Part {
        source: package["source"].as_str()?.to_owned(),
        name: text("name"),
        version: text("version"),
        licence: text("license"),
        repository: text("repository"),
        folder: manifest.parent()?.to_owned(),
    })
}

/// The list of the parts, and every text that lies in one, once.
///
/// # Errors
/// A source can't be read.
pub fn text(parts: &[Part]) -> Result<String, String> {
    let mut text = format!("{HEAD}\n");
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for part in parts {
        let Part { name, version, licence, repository, folder, .. } = part;
        let found = papers(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        let without = if found.is_empty() { "; its source holds no text of it" } else { "" };
        text += &format!("{name} {version}: {licence} ({repository}){without}\n");
        for paper in found {
            texts.entry(paper).or_default().push(format!("{name} {version}"));
        }
    }
    // In the order of the list.
    let mut texts: Vec<_> = texts.into_iter().map(|(paper, whose)| (whose, paper)).collect();
    texts.sort();
    for (whose, paper) in texts {
        text += &format!("\n{}\nOf {}:\n\n{paper}\n", "-".repeat(79), whose.join(", "));
    }
    Ok(text)
}

/// The texts of licences and notices in the folder of a source, without the space around them.
fn papers(folder: &Path) -> std::io::Result<Vec<String>> {
    let mut files: Vec<PathBuf> = Vec::new();
    for path in [folder.to_owned(), folder.join("LICENSES")] {
        for entry in path.read_dir().into_iter().flatten() {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
            let named = NAMES.iter().any(|start| name.starts_with(start));
            // A program may be called so as well.
            let code = name.ends_with(".rs");
            if path.is_file() && !code && (named || path.starts_with(folder.join("LICENSES"))) {
                files.push(path);
            }
        }
    }
    files.sort();
    let mut papers = Vec::new();
    for file in files {
        let paper = String::from_utf8_lossy(&fs::read(file)?).replace("\r\n", "\n");
        let paper = paper.trim_matches('\n').trim_end().to_owned();
        if !paper.is_empty() && !papers.contains(&paper) {
            papers.push(paper);
        }
    }
    Ok(papers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ships_is_listed_with_its_texts() {
        let parts = parts().expect("a list");
        let has = |name: &str| parts.iter().any(|part| part.name == name);
        assert!(has("zbus") && has("tokenizers") && has("ring"), "{parts:?}");
        assert!(!has("proptest") && !has("op-dbus-engine") && !has("cc"), "{parts:?}");
        let text = text(&parts).expect("texts");
        // Their licences say: with every copy.
        for line in ["Permission is hereby granted", "ISC License", "UNICODE LICENSE"] {
            assert!(text.contains(line), "{line}");
        }
    }

    #[test]
    fn the_same_text_stands_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let part = |name: &str| Part {
            name: name.to_owned(),
            version: "1.0.0".to_owned(),
            licence: "MIT".to_owned(),
            source: "registry+elsewhere".to_owned(),
            repository: String::new(),
            folder: folder.path().join(name),
        };
        let write = |path: &str, text: &str| {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            fs::write(path, text).expect("a file");
        };
        write("a/LICENSE-MIT", "\nLet\r\ngo.\n\n");
        write("b/COPYING", "Let\ngo.");
        write("b/src/lib.rs", "");
        write("b/license.rs", "fn main() {}");
        write("c/README.md", "License");
        let text = text(&[part("a"), part("b"), part("c")]).expect("texts");
        assert_eq!(text.matches("Let\ngo.").count(), 1, "{text}");
        assert!(text.contains("Of a 1.0.0, b 1.0.0:\n"), "{text}");
        assert!(text.contains("c 1.0.0: MIT (); its source holds no text of it"), "{text}");
        assert!(!text.contains("fn main"), "{text}");
    }
}
