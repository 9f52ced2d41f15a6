//! Links of the documents: in an installed tree these lie elsewhere than in the repository, and not all of them.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use crate::shell;

/// Where what is not installed can be read, as it was in this version.
const ELSEWHERE: &str =
    concat!(env!("CARGO_PKG_REPOSITORY"), "/blob/v", env!("CARGO_PKG_VERSION"), "/");

/// The page at `from` in the repository, with its links as they lead from `to` in a tree, in which `placed` has
/// the place of each file of the repository.
pub fn led_anew(text: &str, from: &str, to: &str, placed: &BTreeMap<String, String>) -> String {
    let mut page = String::with_capacity(text.len());
    let mut rest = text;
    for link in relative(text) {
        let (path, section) = link.split_at(link.find('#').unwrap_or(link.len()));
        let meant = beside(from, path);
        let leads = match placed.get(&meant) {
            Some(place) => format!("{}{section}", from_to(to, place)),
            None if shell::root().join(&meant).exists() => format!("{ELSEWHERE}{meant}{section}"),
            // Not of the repository, or no link at all.
            None => continue,
        };
        let start = link.as_ptr() as usize - rest.as_ptr() as usize;
        page.push_str(&rest[..start]);
        page.push_str(&leads);
        rest = &rest[start + link.len()..];
    }
    page + rest
}

/// Links of a page that name a file by its place beside the page.
pub fn relative(text: &str) -> impl Iterator<Item = &str> {
    let links = text.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    links.map(|(link, _)| link).filter(|link| !link.starts_with('#') && !link.contains("://"))
}

/// The path of `link`, which is relative to the file `page`, from where that one is.
pub fn beside(page: &str, link: &str) -> String {
    let mut path = PathBuf::from(page);
    path.pop();
    for part in Path::new(link).components() {
        if part == Component::ParentDir {
            path.pop();
        } else {
            path.push(part);
        }
    }
    path.display().to_string()
}

/// How the file `place` is named in a link of the file `page`.
fn from_to(page: &str, place: &str) -> String {
    let page: Vec<&str> = page.split('/').collect();
    let place: Vec<&str> = place.split('/').collect();
    let folders = &page[..page.len() - 1];
    let same = folders.iter().zip(&place).take_while(|(a, b)| a == b).count();
    let mut parts = vec![".."; folders.len() - same];
    parts.extend(&place[same..]);
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_to_where_things_are() {
        let placed = [("docs/use.md", "usr/share/doc/x/use.md"), ("a/b.xml", "usr/share/b.xml")];
        let placed = placed.map(|(from, to)| (from.to_owned(), to.to_owned())).into();
        let anew = |text| led_anew(text, "docs/page.md", "usr/share/doc/x/page.md", &placed);
        let same = "[use](use.md#options), [here](#here), [far](https://a/b), items[0](x)";
        assert_eq!(anew(same), same);
        assert_eq!(anew("[b](../a/b.xml)."), "[b](../../b.xml).");
        let elsewhere = anew("see [it](../CONTRIBUTING.md#rules), [use](use.md)");
        assert!(elsewhere.starts_with("see [it](https://"), "{elsewhere}");
        assert!(elsewhere.ends_with("/CONTRIBUTING.md#rules), [use](use.md)"), "{elsewhere}");
    }
}
