//! Settings read from small trees of files, environments and flags.

mod generated;
mod in_vain;
mod options;
mod precedence;
mod state;
mod values;
mod writers;

use std::fs;
use std::path::Path;

use tempfile::TempDir;

use super::{Loaded, Mistakes, Settings, Sources};

/// A root folder with the files of a test.
struct Tree {
    root: TempDir,
    sources: Sources,
}

impl Tree {
    fn new(files: &[(&str, &str)]) -> Tree {
        let root = tempfile::tempdir().unwrap();
        let sources = Sources::under(root.path());
        let tree = Tree { root, sources };
        for (path, text) in files {
            tree.write(path, text.as_bytes());
        }
        tree
    }

    fn path(&self) -> &Path {
        self.root.path()
    }

    fn write(&self, path: &str, bytes: &[u8]) {
        let path = self.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }

    fn env(mut self, variable: &str, value: &str) -> Tree {
        self.sources.env.insert(variable.into(), value.into());
        self
    }

    fn flag(mut self, key: &str, value: &str) -> Tree {
        self.sources.flags.insert(key.into(), value.into());
        self
    }

    fn load(&self) -> Result<Loaded, Mistakes> {
        Settings::load(&self.sources)
    }

    fn loaded(&self) -> Loaded {
        self.load().unwrap()
    }

    /// The message about all mistakes, with the root's name taken out.
    fn mistakes(&self) -> String {
        let text = self.load().unwrap_err().to_string();
        text.replace(&self.path().display().to_string(), "")
    }
}

const MAIN: &str = "etc/op-dbus/config.toml";
const STATE: &str = "var/lib/op-dbus/state.json";
