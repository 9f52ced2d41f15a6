//! The cache of the hub's usual client, which is only read.

use std::path::{Path, PathBuf};

use super::Hub;

impl Hub<'_> {
    /// A file in the cache that other programs of this user fill.
    pub(crate) fn cached(&self, name: &str) -> Option<PathBuf> {
        let folder = format!("hub/models--{}", self.repository.replace('/', "--"));
        let snapshot = self.home.as_ref()?.join(folder).join("snapshots").join(&self.revision);
        // A link, as a rule, to where the cache has the file itself.
        snapshot.join(name).canonicalize().ok()
    }
}

/// That client's folder, by the variables that are `set`.
pub(super) fn home(set: impl Fn(&str) -> Option<String>) -> Option<PathBuf> {
    let of_user = || Some(Path::new(&set("HOME")?).join(".cache"));
    let in_caches = || {
        let caches = set("XDG_CACHE_HOME").map(PathBuf::from).or_else(of_user)?;
        Some(caches.join("huggingface"))
    };
    set("HF_HOME").map(PathBuf::from).or_else(in_caches)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_is_where_that_client_has_it() {
        let found = |set: &[(&str, &str)]| {
            let value = |name: &str| {
                let found = set.iter().find(|(variable, _)| *variable == name);
                found.map(|(_, value)| (*value).to_owned())
            };
            home(value)
        };
        let all = [("HF_HOME", "/hf"), ("XDG_CACHE_HOME", "/caches"), ("HOME", "/of/her")];
        let expected = ["/hf", "/caches/huggingface", "/of/her/.cache/huggingface"];
        for (index, folder) in expected.into_iter().enumerate() {
            assert_eq!(found(&all[index..]).as_deref(), Some(Path::new(folder)));
        }
        assert_eq!(found(&[]), None);
    }
}
